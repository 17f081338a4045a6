//! Draws a survey for a person: sections of rows with bars, as wide as the terminal.

use std::collections::BTreeMap;

use foldline::Tokens;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::environment::{Ink, Look};
use crate::survey::{Broken, Counted, Session, Survey};

/// Tools beyond this many are summed up.
const TOOLS: usize = 12;

/// The whole picture.
pub(crate) fn draw(survey: &Survey, look: Look) -> String {
    let mut page = Page { look, text: String::new() };
    match survey.sessions.as_slice() {
        [session] => page.session(session),
        sessions => page.sessions(sessions),
    }
    if survey.requests > 0 {
        let resent = survey.sent.saturating_sub(survey.tokens);
        page.line(&format!(
            "{} sent {} tokens in all; {} of them had been sent before",
            counted(survey.requests as u64, "request"),
            number(survey.sent),
            percent(resent, survey.sent)
        ));
    }
    page.shares("By role", survey.by_role.iter().map(|it| (it.name.clone(), it.tokens)), survey.tokens);
    page.tools(survey);
    let ages = survey.by_age.iter().filter(|it| it.tokens > 0);
    page.shares("By age", ages.map(|it| (it.name.clone(), it.tokens)), survey.tokens);
    page.largest(survey);
    page.repeats(survey);
    page.laws(survey);
    page.text
}

/// A bar of what there is of a whole, and behind it, lighter, what there was.
pub(crate) fn of_two(is: Tokens, was: Tokens, whole: Tokens, room: usize, look: Look) -> String {
    let page = Page { look, text: String::new() };
    let cells = |tokens: Tokens| (u128::from(tokens) * room as u128).div_ceil(u128::from(whole.max(1))) as usize;
    let (solid, light) = (cells(is.min(whole)), cells(was.min(whole)).saturating_sub(cells(is)));
    page.ink("36", &"█".repeat(solid)) + &page.ink("2", &"░".repeat(light))
}

/// A text in a colour, where there are colours.
pub(crate) fn inked(text: &str, code: &str, look: Look) -> String {
    Page { look, text: String::new() }.ink(code, text)
}

/// A text in lines that fit, each but the first behind an indent.
pub(crate) fn wrapped(text: &str, look: Look, indent: &str) -> String {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.width() + line.width() + 1 + word.width() > look.width.min(100) {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines.join(&format!("\n{indent}"))
}

struct Page {
    look: Look,
    text: String,
}

impl Page {
    fn line(&mut self, line: &str) {
        self.text.push_str(fitted(line, self.look.width).trim_end());
        self.text.push('\n');
    }

    fn title(&mut self, title: &str) {
        self.text.push('\n');
        let title = self.ink("1", title);
        self.text.push_str(&title);
        self.text.push('\n');
    }

    fn ink(&self, code: &str, text: &str) -> String {
        match self.look.ink {
            Ink::Colours => format!("\x1b[{code}m{text}\x1b[0m"),
            Ink::Plain => text.to_owned(),
        }
    }

    fn session(&mut self, session: &Session) {
        let title = self.ink("1", &fitted(&session.id, self.look.width));
        self.text.push_str(&title);
        self.text.push('\n');
        let model = session.model.as_deref().unwrap_or("unknown model");
        self.line(&format!(
            "{model}, {}, {} in {}",
            session.format,
            counted(session.messages as u64, "message"),
            counted(session.rounds as u64, "round")
        ));
        let (many, tokens) = (number(session.tokens), session.tokens);
        let how = match session.counted {
            Counted::Exactly => "counted exactly",
            Counted::ByCalibration => "calibrated by what the provider reported",
            Counted::ByEstimate => "estimated",
        };
        let full = if tokens > session.window { "31" } else { "36" };
        let bar = self.bar(tokens, session.window, 24, full);
        let share = percent(tokens, session.window);
        self.line(&format!("{many} tokens ({how}), {share} of a window of {}", number(session.window)));
        self.text.push_str(&format!("{bar}\n"));
    }

    fn sessions(&mut self, sessions: &[Session]) {
        let title = format!("{} conversations", number(sessions.len() as u64));
        let title = self.ink("1", &title);
        self.text.push_str(&format!("{title}\n"));
        let largest = sessions.iter().map(|it| it.tokens).max().unwrap_or(0);
        for (at, session) in sessions.iter().enumerate() {
            let name = column(&session.id, self.look.width.saturating_sub(46));
            let bar = self.bar(session.tokens, largest, 16, "36");
            let line = format!("{:>4} {name} {:>5} msgs {:>11}  {bar}", at, session.messages, number(session.tokens));
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
    }

    fn shares(&mut self, title: &str, rows: impl Iterator<Item = (String, Tokens)>, of: Tokens) {
        self.title(title);
        for (name, tokens) in rows {
            self.row(&column(&name, 26), tokens, of);
        }
    }

    /// A name, its tokens, their share, and a bar of it.
    fn row(&mut self, name: &str, tokens: Tokens, of: Tokens) {
        let front = format!("  {name} {:>11} {:>5}  ", number(tokens), percent(tokens, of));
        let room = self.look.width.saturating_sub(front.width()).min(50);
        let bar = self.bar(tokens, of, room, "36");
        self.text.push_str(format!("{front}{bar}").trim_end());
        self.text.push('\n');
    }

    fn tools(&mut self, survey: &Survey) {
        if survey.by_tool.is_empty() {
            return;
        }
        self.title("By tool, calls and results together");
        let (shown, rest) = survey.by_tool.split_at(survey.by_tool.len().min(TOOLS));
        for tool in shown {
            let failed = if tool.failed > 0 { format!(", {} failed", tool.failed) } else { String::new() };
            let name = format!("{} ({}{failed})", tool.name, number(tool.calls as u64));
            self.row(&column(&name, 26), tool.call_tokens + tool.result_tokens, survey.tokens);
        }
        if !rest.is_empty() {
            let tokens = rest.iter().map(|tool| tool.call_tokens + tool.result_tokens).sum();
            self.row(&column(&format!("{} other tools", rest.len()), 26), tokens, survey.tokens);
        }
    }

    fn largest(&mut self, survey: &Survey) {
        if survey.largest.is_empty() {
            return;
        }
        self.title("Largest parts");
        for it in &survey.largest {
            let place = place(survey, it.session, &it.place);
            let age = match it.age {
                0 => "new".to_owned(),
                1 => "1 request old".to_owned(),
                age => format!("{age} requests old"),
            };
            let share = percent(it.tokens, survey.tokens);
            self.line(&format!("  {:>9} {share:>5}  {place:<9} {age:<17} {}", number(it.tokens), it.what));
            if !it.head.is_empty() {
                let head = fitted(&format!("{:29}{}", "", it.head), self.look.width);
                let head = self.ink("2", head.trim_end());
                self.text.push_str(&format!("{head}\n"));
            }
        }
    }

    fn repeats(&mut self, survey: &Survey) {
        self.title("Said again");
        let repeats = &survey.repeats;
        self.line(&match repeats.parts {
            0 => "  no part repeats an earlier one word for word".to_owned(),
            1 => format!("  1 part repeats an earlier one word for word: {} tokens", number(repeats.tokens)),
            parts => format!(
                "  {} parts repeat an earlier one word for word: {} tokens",
                number(parts as u64),
                number(repeats.tokens)
            ),
        });
        for it in &repeats.groups {
            let place = place(survey, it.session, &it.place);
            self.line(&format!("  {:>9} again {:>3}x  {place:<9} {}", number(it.tokens), it.again, it.what));
        }
        let lines = survey.lines;
        if lines.bytes > 0 {
            self.line(&format!(
                "  {} of the lines of results stood in an earlier result: about {} tokens",
                percent(lines.repeated_bytes, lines.bytes),
                number(lines.tokens)
            ));
        }
    }

    fn laws(&mut self, survey: &Survey) {
        self.title("Broken laws of the provider");
        if survey.broken_laws.is_empty() {
            self.line("  none");
        }
        let mut laws: BTreeMap<&str, (usize, &Broken)> = BTreeMap::new();
        for it in &survey.broken_laws {
            laws.entry(&it.law).or_insert((0, it)).0 += 1;
        }
        let mut laws: Vec<_> = laws.into_values().collect();
        laws.sort_by_key(|(times, _)| std::cmp::Reverse(*times));
        for (times, first) in laws {
            let place = match survey.sessions.len() {
                1 => first.place.clone(),
                _ => format!("{} of {}", first.place, first.session),
            };
            let times = if times == 1 { String::new() } else { format!(" ({}x, first here)", number(times as u64)) };
            self.line(&format!("  {}: {place}{times}: {}", first.law, first.detail));
        }
    }

    /// A bar in eighths of a column; red behind the end when there is more than there may be.
    fn bar(&self, part: u64, whole: u64, room: usize, code: &str) -> String {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let eighths = match whole {
            0 => 0,
            _ => (u128::from(part.min(whole)) * room as u128 * 8 / u128::from(whole)) as usize,
        };
        // Something is never drawn as nothing.
        let eighths = if part > 0 { eighths.max(1) } else { 0 };
        let bar = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
        if bar.is_empty() { bar } else { self.ink(code, &bar) }
    }
}

/// The place of a part; with several conversations, behind the number of its own.
fn place(survey: &Survey, session: usize, place: &str) -> String {
    if survey.sessions.len() > 1 { format!("{session}:{place}") } else { place.to_owned() }
}

/// So many of something.
pub(crate) fn counted(many: u64, what: &str) -> String {
    format!("{} {what}{}", number(many), if many == 1 { "" } else { "s" })
}

/// A number with commas.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share of a whole.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    format!("{:.0} %", part as f64 * 100.0 / whole as f64)
}

/// A text cut to so many columns.
fn fitted(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut taken = 1;
    for character in text.chars() {
        taken += character.width().unwrap_or(0);
        if taken > columns {
            break;
        }
        cut.push(character);
    }
    cut + "…"
}

/// A text of exactly so many columns.
pub(crate) fn column(text: &str, columns: usize) -> String {
    let text = fitted(text, columns);
    let missing = columns.saturating_sub(text.width());
    text + &" ".repeat(missing)
}
