//! Draws a survey for a person: sections of rows with bars, as wide as the terminal.

use std::collections::BTreeMap;

use foldline::Tokens;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::environment::{ColorChoice, Terminal};
use crate::token_report::{CountAccuracy, SessionReport, TokenReport, ViolationReport};

/// Tools beyond this many are summed up.
const MAX_TOOL_ROWS: usize = 12;

/// The whole picture.
pub(crate) fn render_report(survey: &TokenReport, look: Terminal) -> String {
    let mut page = ReportWriter { terminal: look, text: String::new() };
    match survey.sessions.as_slice() {
        [session] => page.write_session(session),
        sessions => page.write_sessions(sessions),
    }
    if survey.requests > 0 {
        let resent = survey.sent_tokens.saturating_sub(survey.tokens);
        page.write_line(&format!(
            "{} sent {} tokens in all; {} of them had been sent before",
            pluralize(survey.requests as u64, "request"),
            format_number(survey.sent_tokens),
            format_percent(resent, survey.sent_tokens)
        ));
    }
    page.write_shares("By role", survey.by_role.iter().map(|it| (it.name.clone(), it.tokens)), survey.tokens);
    page.write_tools(survey);
    let ages = survey.by_age.iter().filter(|it| it.tokens > 0);
    page.write_shares("By age", ages.map(|it| (it.name.clone(), it.tokens)), survey.tokens);
    page.write_largest(survey);
    page.write_repeats(survey);
    page.write_violations(survey);
    page.text
}

/// A bar of what there is of a whole, and behind it, lighter, what there was.
pub(crate) fn comparison_bar(is: Tokens, was: Tokens, whole: Tokens, room: usize, look: Terminal) -> String {
    let page = ReportWriter { terminal: look, text: String::new() };
    let cells = |tokens: Tokens| (u128::from(tokens) * room as u128).div_ceil(u128::from(whole.max(1))) as usize;
    let (solid, light) = (cells(is.min(whole)), cells(was.min(whole)).saturating_sub(cells(is)));
    page.colored("36", &"█".repeat(solid)) + &page.colored("2", &"░".repeat(light))
}

/// A text in a colour, where there are colours.
pub(crate) fn colored(text: &str, code: &str, look: Terminal) -> String {
    ReportWriter { terminal: look, text: String::new() }.colored(code, text)
}

/// A text in lines that fit, each but the first behind an indent.
pub(crate) fn wrapped(text: &str, look: Terminal, indent: &str) -> String {
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

struct ReportWriter {
    terminal: Terminal,
    text: String,
}

impl ReportWriter {
    fn write_line(&mut self, line: &str) {
        self.text.push_str(truncated(line, self.terminal.width).trim_end());
        self.text.push('\n');
    }

    fn write_title(&mut self, title: &str) {
        self.text.push('\n');
        let title = self.colored("1", title);
        self.text.push_str(&title);
        self.text.push('\n');
    }

    fn colored(&self, code: &str, text: &str) -> String {
        match self.terminal.color {
            ColorChoice::Colored => format!("\x1b[{code}m{text}\x1b[0m"),
            ColorChoice::Plain => text.to_owned(),
        }
    }

    fn write_session(&mut self, session: &SessionReport) {
        let title = self.colored("1", &truncated(&session.id, self.terminal.width));
        self.text.push_str(&title);
        self.text.push('\n');
        let model = session.model.as_deref().unwrap_or("unknown model");
        self.write_line(&format!(
            "{model}, {}, {} in {}",
            session.format,
            pluralize(session.messages as u64, "message"),
            pluralize(session.rounds as u64, "round")
        ));
        let (many, tokens) = (format_number(session.tokens), session.tokens);
        let how = match session.counted {
            CountAccuracy::Exactly => "counted exactly",
            CountAccuracy::ByCalibration => "calibrated by what the provider reported",
            CountAccuracy::ByEstimate => "estimated",
        };
        let full = if tokens > session.window { "31" } else { "36" };
        let bar = self.bar(tokens, session.window, 24, full);
        let share = format_percent(tokens, session.window);
        self.write_line(&format!("{many} tokens ({how}), {share} of a window of {}", format_number(session.window)));
        self.text.push_str(&format!("{bar}\n"));
    }

    fn write_sessions(&mut self, sessions: &[SessionReport]) {
        let title = format!("{} conversations", format_number(sessions.len() as u64));
        let title = self.colored("1", &title);
        self.text.push_str(&format!("{title}\n"));
        let largest = sessions.iter().map(|it| it.tokens).max().unwrap_or(0);
        for (at, session) in sessions.iter().enumerate() {
            let name = padded(&session.id, self.terminal.width.saturating_sub(46));
            let bar = self.bar(session.tokens, largest, 16, "36");
            let line =
                format!("{:>4} {name} {:>5} msgs {:>11}  {bar}", at, session.messages, format_number(session.tokens));
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
    }

    fn write_shares(&mut self, title: &str, rows: impl Iterator<Item = (String, Tokens)>, of: Tokens) {
        self.write_title(title);
        for (name, tokens) in rows {
            self.write_row(&padded(&name, 26), tokens, of);
        }
    }

    /// A name, its tokens, their share, and a bar of it.
    fn write_row(&mut self, name: &str, tokens: Tokens, of: Tokens) {
        let front = format!("  {name} {:>11} {:>5}  ", format_number(tokens), format_percent(tokens, of));
        let room = self.terminal.width.saturating_sub(front.width()).min(50);
        let bar = self.bar(tokens, of, room, "36");
        self.text.push_str(format!("{front}{bar}").trim_end());
        self.text.push('\n');
    }

    fn write_tools(&mut self, survey: &TokenReport) {
        if survey.by_tool.is_empty() {
            return;
        }
        self.write_title("By tool, calls and results together");
        let (shown, rest) = survey.by_tool.split_at(survey.by_tool.len().min(MAX_TOOL_ROWS));
        for tool in shown {
            let failed = if tool.failed > 0 { format!(", {} failed", tool.failed) } else { String::new() };
            let name = format!("{} ({}{failed})", tool.name, format_number(tool.calls as u64));
            self.write_row(&padded(&name, 26), tool.call_tokens + tool.result_tokens, survey.tokens);
        }
        if !rest.is_empty() {
            let tokens = rest.iter().map(|tool| tool.call_tokens + tool.result_tokens).sum();
            self.write_row(&padded(&format!("{} other tools", rest.len()), 26), tokens, survey.tokens);
        }
    }

    fn write_largest(&mut self, survey: &TokenReport) {
        if survey.largest.is_empty() {
            return;
        }
        self.write_title("Largest parts");
        for it in &survey.largest {
            let place = place_label(survey, it.session, &it.part);
            let age = match it.age {
                0 => "new".to_owned(),
                1 => "1 request old".to_owned(),
                age => format!("{age} requests old"),
            };
            let share = format_percent(it.tokens, survey.tokens);
            self.write_line(&format!(
                "  {:>9} {share:>5}  {place:<9} {age:<17} {}",
                format_number(it.tokens),
                it.description
            ));
            if !it.head.is_empty() {
                let head = truncated(&format!("{:29}{}", "", it.head), self.terminal.width);
                let head = self.colored("2", head.trim_end());
                self.text.push_str(&format!("{head}\n"));
            }
        }
    }

    fn write_repeats(&mut self, survey: &TokenReport) {
        self.write_title("Said again");
        let repeats = &survey.repeats;
        self.write_line(&match repeats.parts {
            0 => "  no part repeats an earlier one word for word".to_owned(),
            1 => format!("  1 part repeats an earlier one word for word: {} tokens", format_number(repeats.tokens)),
            parts => format!(
                "  {} parts repeat an earlier one word for word: {} tokens",
                format_number(parts as u64),
                format_number(repeats.tokens)
            ),
        });
        for it in &repeats.groups {
            let place = place_label(survey, it.session, &it.place);
            self.write_line(&format!(
                "  {:>9} again {:>3}x  {place:<9} {}",
                format_number(it.tokens),
                it.repeat_count,
                it.description
            ));
        }
        let lines = survey.lines;
        if lines.bytes > 0 {
            self.write_line(&format!(
                "  {} of the lines of results stood in an earlier result: about {} tokens",
                format_percent(lines.repeated_bytes, lines.bytes),
                format_number(lines.tokens)
            ));
        }
    }

    fn write_violations(&mut self, survey: &TokenReport) {
        self.write_title("Broken laws of the provider");
        if survey.broken_laws.is_empty() {
            self.write_line("  none");
        }
        let mut laws: BTreeMap<&str, (usize, &ViolationReport)> = BTreeMap::new();
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
            let times =
                if times == 1 { String::new() } else { format!(" ({}x, first here)", format_number(times as u64)) };
            self.write_line(&format!("  {}: {place}{times}: {}", first.law, first.detail));
        }
    }

    /// A bar in eighths of a column; red behind the end when there is more than there may be.
    fn bar(&self, part: u64, whole: u64, room: usize, code: &str) -> String {
        const BAR_EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let eighths = match whole {
            0 => 0,
            _ => (u128::from(part.min(whole)) * room as u128 * 8 / u128::from(whole)) as usize,
        };
        // Something is never drawn as nothing.
        let eighths = if part > 0 { eighths.max(1) } else { 0 };
        let bar = "█".repeat(eighths / 8) + BAR_EIGHTHS[eighths % 8];
        if bar.is_empty() { bar } else { self.colored(code, &bar) }
    }
}

/// The place of a part; with several conversations, behind the number of its own.
fn place_label(survey: &TokenReport, session: usize, place: &str) -> String {
    if survey.sessions.len() > 1 { format!("{session}:{place}") } else { place.to_owned() }
}

/// So many of something.
pub(crate) fn pluralize(many: u64, what: &str) -> String {
    format!("{} {what}{}", format_number(many), if many == 1 { "" } else { "s" })
}

/// A number with commas.
pub(crate) fn format_number(number: u64) -> String {
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
pub(crate) fn format_percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    format!("{:.0} %", part as f64 * 100.0 / whole as f64)
}

/// A text cut to so many columns.
fn truncated(text: &str, columns: usize) -> String {
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
pub(crate) fn padded(text: &str, columns: usize) -> String {
    let text = truncated(text, columns);
    let missing = columns.saturating_sub(text.width());
    text + &" ".repeat(missing)
}
