//! The reference page, written from the table so that it can not drift from it (`cargo xtask reference`).

use std::fmt::Write as _;

use super::LawTopic;
use super::law::{LAW_TABLE, UNCHECKED_RULES};

/// The text of `docs/reference/laws.md`.
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Laws\n\n\
         Written by `cargo xtask reference`.\n\n\
         What providers and servers refuse, as `foldline` checks it.\n\n\
         A law has a name, and one id for each format, server or kind of model that has it: `A` is Anthropic Messages, \
         `C` OpenAI Chat Completions, `R` OpenAI Responses, `L` other servers that speak these formats, `P` what a \
         rewritten request owes to the client's. *Models of OpenAI* and *some models* are told by the table of models \
         (its column `laws` names the ids); *chat templates* are local servers whose template is not known.\n",
    );
    let topics = [
        (LawTopic::Pairing, "Calls and results"),
        (LawTopic::Roles, "Who speaks"),
        (LawTopic::Text, "Text"),
        (LawTopic::Reasoning, "Reasoning"),
        (LawTopic::Tools, "Tools"),
        (LawTopic::Arguments, "Arguments"),
        (LawTopic::CacheBreakpoints, "Cache marks"),
        (LawTopic::Media, "Media and size"),
        (LawTopic::RewrittenRequest, "A rewritten request beside the client's"),
    ];
    for (topic, title) in topics {
        let _ = write!(page, "\n## {title}\n\n| law | id: where | rule |\n|---|---|---|\n");
        for entry in LAW_TABLE.iter().filter(|entry| entry.topic == topic) {
            let homes: Vec<String> = entry.scopes.iter().map(|(home, id)| format!("{id}: {home}")).collect();
            let _ = writeln!(page, "| `{}` | {} | {} |", entry.name, homes.join("<br>"), entry.rule);
        }
    }
    page.push_str("\n## What can not be checked on a request\n\n| id | why |\n|---|---|\n");
    for (id, why) in UNCHECKED_RULES {
        let _ = writeln!(page, "| {id} | {why} |");
    }
    page
}
