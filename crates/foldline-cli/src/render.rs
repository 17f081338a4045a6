//! Renders a token report for a terminal: sections of rows with bars, as wide as the terminal.

use std::collections::BTreeMap;

use foldline::tokens::Tokens;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::environment::{ColorChoice, Terminal};
use crate::token_report::{CountAccuracy, SessionReport, TokenReport, ViolationReport};

/// Tools beyond this number are summed up.
const MAX_TOOL_ROWS: usize = 12;

/// Renders the whole report.
pub(crate) fn render_report(report: &TokenReport, terminal: Terminal) -> String {
    let mut writer = ReportWriter { terminal, text: String::new() };
    match report.sessions.as_slice() {
        [session] => writer.write_session(session),
        sessions => writer.write_sessions(sessions),
    }
    if report.requests > 0 {
        let resent = report.sent_tokens.saturating_sub(report.tokens);
        writer.write_line(&format!(
            "{} sent {} tokens in total; {} of them had been sent before",
            pluralize(report.requests as u64, "request"),
            format_number(report.sent_tokens),
            format_percent(resent, report.sent_tokens)
        ));
    }
    writer.write_shares("By role", report.by_role.iter().map(|it| (it.name.clone(), it.tokens)), report.tokens);
    writer.write_tools(report);
    let ages = report.by_age.iter().filter(|it| it.tokens > 0);
    writer.write_shares("By age", ages.map(|it| (it.name.clone(), it.tokens)), report.tokens);
    writer.write_largest(report);
    writer.write_repeats(report);
    writer.write_violations(report);
    writer.text
}

/// Renders a bar of the current share of a whole, followed by a lighter bar of the previous share.
pub(crate) fn comparison_bar(
    current: Tokens,
    previous: Tokens,
    whole: Tokens,
    room: usize,
    terminal: Terminal,
) -> String {
    let writer = ReportWriter { terminal, text: String::new() };
    let cells = |tokens: Tokens| (u128::from(tokens) * room as u128).div_ceil(u128::from(whole.max(1))) as usize;
    let (solid, light) = (cells(current.min(whole)), cells(previous.min(whole)).saturating_sub(cells(current)));
    writer.colored("36", &"█".repeat(solid)) + &writer.colored("2", &"░".repeat(light))
}

/// Colors a text, if colors are enabled.
pub(crate) fn colored(text: &str, code: &str, terminal: Terminal) -> String {
    ReportWriter { terminal, text: String::new() }.colored(code, text)
}

/// Wraps a text to the terminal's width; every line but the first starts with `indent`.
pub(crate) fn wrapped(text: &str, terminal: Terminal, indent: &str) -> String {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.width() + line.width() + 1 + word.width() > terminal.width.min(100) {
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
        self.text.push_str(truncated(&plain(line), self.terminal.width).trim_end());
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
        let title = self.colored("1", &truncated(&plain(&session.id), self.terminal.width));
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
            CountAccuracy::ByCalibration => "calibrated by the provider's reports",
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
            let name = padded(&plain(&session.id), self.terminal.width.saturating_sub(46));
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
            self.write_row(&padded(&plain(&name), 26), tokens, of);
        }
    }

    /// Writes a row: name, tokens, share, and a bar of the share.
    fn write_row(&mut self, name: &str, tokens: Tokens, of: Tokens) {
        let front = format!("  {name} {:>11} {:>5}  ", format_number(tokens), format_percent(tokens, of));
        let room = self.terminal.width.saturating_sub(front.width()).min(50);
        let bar = self.bar(tokens, of, room, "36");
        self.text.push_str(format!("{front}{bar}").trim_end());
        self.text.push('\n');
    }

    fn write_tools(&mut self, report: &TokenReport) {
        if report.by_tool.is_empty() {
            return;
        }
        self.write_title("By tool, calls and results together");
        let (shown, rest) = report.by_tool.split_at(report.by_tool.len().min(MAX_TOOL_ROWS));
        for tool in shown {
            let failed = if tool.failed > 0 { format!(", {} failed", tool.failed) } else { String::new() };
            let name = format!("{} ({}{failed})", tool.name, format_number(tool.calls as u64));
            self.write_row(&padded(&plain(&name), 26), tool.call_tokens + tool.result_tokens, report.tokens);
        }
        if !rest.is_empty() {
            let tokens = rest.iter().map(|tool| tool.call_tokens + tool.result_tokens).sum();
            self.write_row(&padded(&format!("{} other tools", rest.len()), 26), tokens, report.tokens);
        }
    }

    fn write_largest(&mut self, report: &TokenReport) {
        if report.largest.is_empty() {
            return;
        }
        self.write_title("Largest parts");
        for it in &report.largest {
            let place = place_label(report, it.session, &it.part);
            let age = match it.age {
                0 => "new".to_owned(),
                1 => "1 request old".to_owned(),
                age => format!("{age} requests old"),
            };
            let share = format_percent(it.tokens, report.tokens);
            self.write_line(&format!(
                "  {:>9} {share:>5}  {place:<9} {age:<17} {}",
                format_number(it.tokens),
                it.description
            ));
            if !it.head.is_empty() {
                let head = truncated(&format!("{:29}{}", "", plain(&it.head)), self.terminal.width);
                let head = self.colored("2", head.trim_end());
                self.text.push_str(&format!("{head}\n"));
            }
        }
    }

    fn write_repeats(&mut self, report: &TokenReport) {
        self.write_title("Repeated text");
        let repeats = &report.repeats;
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
            let place = place_label(report, it.session, &it.part);
            self.write_line(&format!(
                "  {:>9} repeated {:>3}x  {place:<9} {}",
                format_number(it.tokens),
                it.repeat_count,
                it.description
            ));
        }
        let lines = report.lines;
        if lines.bytes > 0 {
            self.write_line(&format!(
                "  {} of the result lines appear in an earlier result: about {} tokens",
                format_percent(lines.repeated_bytes, lines.bytes),
                format_number(lines.tokens)
            ));
        }
    }

    fn write_violations(&mut self, report: &TokenReport) {
        self.write_title("Violated provider laws");
        if report.broken_laws.is_empty() {
            self.write_line("  none");
        }
        let mut laws: BTreeMap<&str, (usize, &ViolationReport)> = BTreeMap::new();
        for it in &report.broken_laws {
            laws.entry(&it.law).or_insert((0, it)).0 += 1;
        }
        let mut laws: Vec<_> = laws.into_values().collect();
        laws.sort_by_key(|(times, _)| std::cmp::Reverse(*times));
        for (times, first) in laws {
            let place = match report.sessions.len() {
                1 => first.position.clone(),
                _ => format!("{} of {}", first.position, first.session),
            };
            let times =
                if times == 1 { String::new() } else { format!(" ({}x, first here)", format_number(times as u64)) };
            self.write_line(&format!("  {}: {place}{times}: {}", first.law, first.detail));
        }
    }

    /// Returns a bar in eighths of a column.
    fn bar(&self, part: u64, whole: u64, room: usize, code: &str) -> String {
        const BAR_EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let eighths = match whole {
            0 => 0,
            _ => (u128::from(part.min(whole)) * room as u128 * 8 / u128::from(whole)) as usize,
        };
        // A nonzero value never renders as an empty bar.
        let eighths = if part > 0 { eighths.max(1) } else { 0 };
        let bar = "█".repeat(eighths / 8) + BAR_EIGHTHS[eighths % 8];
        if bar.is_empty() { bar } else { self.colored(code, &bar) }
    }
}

/// Returns the position of a part; with several conversations, prefixed by the session's index.
fn place_label(report: &TokenReport, session: usize, place: &str) -> String {
    if report.sessions.len() > 1 { format!("{session}:{place}") } else { place.to_owned() }
}

/// Formats a count with its noun in singular or plural.
pub(crate) fn pluralize(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", format_number(count), if count == 1 { "" } else { "s" })
}

/// Formats a number with thousands separators.
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

/// Formats a part as a percentage of a whole.
pub(crate) fn format_percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    format!("{:.0} %", part as f64 * 100.0 / whole as f64)
}

/// Returns a text without control characters: recorded data must not control the terminal. Each is shown as its symbol,
/// and directional overrides as the replacement character.
pub(crate) fn plain(text: &str) -> String {
    let is_override =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| match c {
        '\t' => ' ',
        c @ '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
        '\u{7f}' => '\u{2421}',
        c if c.is_control() || is_override(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Returns a text of several lines without control characters in its lines.
pub(crate) fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

/// Cuts a text to a number of columns.
pub(crate) fn truncated(text: &str, columns: usize) -> String {
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

/// Pads or cuts a text to exactly a number of columns.
pub(crate) fn padded(text: &str, columns: usize) -> String {
    let text = truncated(text, columns);
    let missing = columns.saturating_sub(text.width());
    text + &" ".repeat(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_not_sent() {
        assert_eq!(
            plain("a\u{1b}]0;t\u{7}b\r\u{9b}31m\u{202e}c\td"),
            "a\u{241b}]0;t\u{2407}b\u{240d}\u{fffd}31m\u{fffd}c d"
        );
        assert_eq!(plain("grün 変"), "grün 変");
    }
}
