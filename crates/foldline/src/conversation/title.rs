//! The first words of a task, by which people recognize a session.

use crate::conversation::message::{Message, Part, Role};

/// Maximum characters of a title.
const MAX_TITLE_CHARS: usize = 100;
/// Texts of the user that are looked at.
const MAX_TEXTS: usize = 8;
/// First words of instructions that a client sends as a text of the user.
const CLIENT_INSTRUCTIONS: &str = "# AGENTS.md instructions";

/// Returns the first words of the task: the first line that the user wrote. Clients put reminders in tags, and
/// instructions of the project, before it.
pub fn task_title(messages: &[Message<'_>]) -> Option<String> {
    let texts = messages.iter().filter(|message| message.role == Role::User).flat_map(|message| &message.parts);
    let texts = texts.filter_map(|part| if let Part::Text { text } = part { Some(text.as_str()) } else { None });
    let is_words = |line: &&str| !line.is_empty() && !line.starts_with('<');
    let words = texts
        .take(MAX_TEXTS)
        .filter(|text| !text.trim_start().starts_with(CLIENT_INSTRUCTIONS))
        .find_map(|text| without_tags(text).lines().map(str::trim).find(is_words))?;
    let mut title: String = words.chars().take(MAX_TITLE_CHARS).collect();
    if words.chars().nth(MAX_TITLE_CHARS).is_some() {
        title.push('\u{2026}');
    }
    Some(title)
}

/// Returns the text without leading blocks in tags.
fn without_tags(text: &str) -> &str {
    let mut rest = text.trim_start();
    while let Some(tag) = rest.strip_prefix('<').and_then(|tag| tag.split_once('>')).map(|(name, _)| name) {
        let name = tag.split_whitespace().next().unwrap_or_default();
        let Some((_, after)) = rest.split_once(&format!("</{name}>")) else { break };
        rest = after.trim_start();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn title(texts: &[&str]) -> Option<String> {
        let parts = texts.iter().map(|text| Part::text((*text).to_owned())).collect();
        task_title(&[Message::new(Role::User, parts)])
    }

    #[test]
    fn title_is_what_the_user_wrote() {
        let reminder = "<system-reminder>\nnever shown\n</system-reminder>";
        let task = "<context a=\"1\">x</context>\n\n  Fix the importer.\nIt loses rows.";
        assert_eq!(title(&[reminder, task]).unwrap(), "Fix the importer.");
        assert_eq!(title(&["# AGENTS.md instructions for /x\nbe good", "go"]).unwrap(), "go");
        assert_eq!(title(&[reminder]), None);
    }

    #[test]
    fn long_title_is_cut_at_a_character() {
        let title = title(&["\u{e9}".repeat(300).as_str()]).unwrap();
        assert_eq!(title.chars().count(), MAX_TITLE_CHARS + 1);
    }
}
