//! Classes of tools: which look, which act, and which output may be summarized.
//!
//! A tool is classified by the whole words of its name and, if it runs commands, by the command. Whatever is unknown
//! counts as an action with side effects whose exact output matters: repeating an action is worse than listing a look,
//! and so is losing output.

use foldline::conversation::ToolCall;
use foldline::engine::{ActionKind, ToolAction};

/// The class of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolClass {
    /// Looks at something on the machine or in a service, without side effects; its exact output matters.
    Look,
    /// Looks at the web, without side effects; its output may be summarized.
    WebLook,
    /// Writes a whole file.
    Write,
    /// Changes a file.
    Edit,
    /// Runs a command, which decides.
    Run,
    /// Has side effects, or is unknown.
    Action,
}

/// The classes of tools by the words of their names. The last rule that matches a name applies.
///
/// ```
/// use foldline_summarize::{ToolClass, ToolTable};
///
/// let table = ToolTable::default().with_rule("ask_oracle", ToolClass::WebLook);
/// assert_eq!(table.class("ask_oracle"), ToolClass::WebLook);
/// assert_eq!(table.class("mcp__github__list_issues"), ToolClass::Look);
/// assert_eq!(table.class("open_pull_request"), ToolClass::Action);
/// assert_eq!(table.class("never_heard_of"), ToolClass::Action);
/// ```
#[derive(Clone, Debug)]
pub struct ToolTable {
    rules: Vec<(Vec<String>, ToolClass)>,
}

/// The built-in rules, from the weakest to the strongest: words that must all occur in a name, and the class.
const BUILTIN_RULES: &[(ToolClass, &[&str])] = &[
    (
        ToolClass::Look,
        &[
            "read",
            "view",
            "cat",
            "show",
            "list",
            "ls",
            "grep",
            "rg",
            "glob",
            "find",
            "search",
            "get",
            "head",
            "tail",
            "tree",
            "stat",
            "describe",
            "inspect",
            "lookup",
            "status",
            "diff",
            "log",
            "blame",
            "recall",
            "open file",
            "open document",
        ],
    ),
    (
        ToolClass::WebLook,
        &[
            "webfetch",
            "websearch",
            "web fetch",
            "web search",
            "web read",
            "web get",
            "fetch url",
            "fetch page",
            "fetch webpage",
            "google search",
            "browse",
            "scrape",
            "crawl",
        ],
    ),
    (ToolClass::Run, &["bash", "shell", "sh", "exec", "execute", "command", "terminal", "run", "powershell", "zsh"]),
    (
        ToolClass::Action,
        &[
            "send",
            "submit",
            "post",
            "publish",
            "delete",
            "remove",
            "drop",
            "truncate",
            "create",
            "add",
            "update",
            "set",
            "merge",
            "commit",
            "push",
            "deploy",
            "approve",
            "reject",
            "close",
            "reopen",
            "open pull",
            "open issue",
            "open request",
            "notify",
            "reply",
            "comment",
            "click",
            "type",
            "press",
            "navigate",
            "upload",
            "move",
            "rename",
            "copy",
            "install",
            "start",
            "stop",
            "restart",
            "kill",
            "cancel",
            "pay",
            "buy",
            "book",
            "invite",
            "tag",
            "release",
            "rollback",
            "reset",
            "clear",
            "purge",
            "enable",
            "disable",
            "grant",
            "revoke",
            "stdin",
        ],
    ),
    (ToolClass::Write, &["write", "create file", "save"]),
    (ToolClass::Edit, &["edit", "editor", "replace", "patch", "insert"]),
    (ToolClass::Run, &["write stdin"]),
];

impl Default for ToolTable {
    /// Returns the built-in rules.
    fn default() -> Self {
        let mut table = Self { rules: Vec::new() };
        for (class, names) in BUILTIN_RULES {
            for name in *names {
                table.rules.push((name_words(name), *class));
            }
        }
        table
    }
}

impl ToolTable {
    /// Adds a rule, which takes precedence over all earlier ones: tools whose names contain all words of `name` have
    /// this class.
    #[must_use]
    pub fn with_rule(mut self, name: &str, class: ToolClass) -> Self {
        self.rules.push((name_words(name), class));
        self
    }

    /// Returns the class of a tool by its name alone.
    pub fn class(&self, name: &str) -> ToolClass {
        let words = name_words(name);
        let matches = |rule: &[String]| !rule.is_empty() && rule.iter().all(|word| words.contains(word));
        self.rules.iter().rev().find(|(rule, _)| matches(rule)).map_or(ToolClass::Action, |(_, class)| *class)
    }

    /// Returns the class of a call: of a command, what it does; of an editor, whether it only views.
    pub fn call_class(&self, call: &ToolCall<'_>) -> ToolClass {
        match self.class(&call.name) {
            ToolClass::Run if is_read_only_command(&command_text(call)) => ToolClass::Look,
            ToolClass::Edit if views_only(call) => ToolClass::Look,
            class => class,
        }
    }

    /// Returns true if the exact output of a call matters, so that it must not be summarized.
    pub fn needs_exact_output(&self, call: &ToolCall<'_>) -> bool {
        self.call_class(call) != ToolClass::WebLook
    }
}

/// Splits a name into lower-case words at signs and where upper case begins.
fn name_words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for character in name.chars() {
        if !character.is_alphanumeric() || character.is_uppercase() && after_lower {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| character.is_alphanumeric()) {
            word.extend(character.to_lowercase());
        }
        after_lower = character.is_lowercase() || character.is_numeric();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns true if the command of an editor is `view`.
fn views_only(call: &ToolCall<'_>) -> bool {
    #[derive(serde::Deserialize)]
    struct EditorArguments {
        command: String,
    }
    serde_json::from_str::<EditorArguments>(call.arguments.as_str()).is_ok_and(|arguments| arguments.command == "view")
}

/// Returns the command of a call that runs one.
fn command_text(call: &ToolCall<'_>) -> String {
    let action = ToolAction::from_call(call);
    match action.kind {
        // The target of a recognized read is a file, not the command; the arguments have the whole command.
        ActionKind::Run | ActionKind::Search => action.target,
        _ => serde_json::from_str::<serde_json::Value>(call.arguments.as_str())
            .ok()
            .and_then(|arguments| {
                let command = ["command", "cmd", "script", "input"].iter().find_map(|key| arguments.get(key))?;
                match command {
                    serde_json::Value::String(text) => Some(text.clone()),
                    serde_json::Value::Array(words) => {
                        Some(words.iter().filter_map(|word| word.as_str()).collect::<Vec<_>>().join(" "))
                    }
                    _ => None,
                }
            })
            .unwrap_or_default(),
    }
}

/// Programs that only show something.
const LOOKING_PROGRAMS: [&str; 37] = [
    "cat", "head", "tail", "less", "more", "bat", "nl", "ls", "dir", "grep", "egrep", "rg", "ag", "find", "fd", "tree",
    "wc", "stat", "file", "pwd", "echo", "printf", "sort", "uniq", "cut", "diff", "cmp", "which", "whoami", "date",
    "du", "df", "ps", "jq", "cd", "true", "sed",
];
/// Subcommands of git that only show something.
const LOOKING_GIT_COMMANDS: [&str; 9] =
    ["status", "log", "diff", "show", "blame", "grep", "ls-files", "rev-parse", "describe"];
/// Options with which looking programs write a file or run something, by program; `*` is every program.
const ACTING_OPTIONS: [(&str, &[&str]); 10] = [
    ("find", &["-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fprint0", "-fprintf", "-fls"]),
    ("fd", &["-x", "-X", "--exec", "--exec-batch"]),
    ("git", &["-c", "-O", "--open-files-in-pager", "--ext-diff"]),
    ("date", &["-s", "--set"]),
    ("file", &["-C", "--compile"]),
    ("less", &["-o", "-O", "--log-file"]),
    ("rg", &["--pre"]),
    ("sort", &["--compress-program"]),
    ("tree", &["-o"]),
    ("*", &["-i", "--in-place", "--output", "--pager"]),
];

/// Returns true if every program of a shell command only shows something, and nothing is written to a file.
fn is_read_only_command(command: &str) -> bool {
    let command = command.trim();
    let inner = ["bash -lc ", "bash -c ", "sh -c "].iter().find_map(|wrapper| command.strip_prefix(wrapper));
    let command = inner.map_or(command, |inner| inner.trim().trim_matches(['\'', '"']));
    // Only errors, or all output, may be discarded.
    let command = command.replace("2>/dev/null", " ").replace("2>&1", " ").replace(">/dev/null", " ");
    if command.is_empty() || command.contains(['>', '`']) || command.contains("$(") || command.contains("<(") {
        return false;
    }
    let separators = ['\n', ';', '|', '&'];
    command.split(separators).map(str::trim).filter(|simple| !simple.is_empty()).all(is_looking_program)
}

fn is_looking_program(simple: &str) -> bool {
    let (program, arguments) = simple.split_once(char::is_whitespace).unwrap_or((simple, ""));
    let program = program.rsplit('/').next().unwrap_or_default();
    let words: Vec<&str> = arguments.split_ascii_whitespace().collect();
    let is_option = |word: &str, option: &str| word.split('=').next() == Some(option);
    let acts = |word: &&str| {
        let options = ACTING_OPTIONS.iter().filter(|(name, _)| [program, "*"].contains(name));
        options.flat_map(|(_, options)| *options).any(|option| is_option(word, option))
    };
    match program {
        // Case is ignored, or a position is shown.
        "grep" | "egrep" | "rg" | "ag" | "ls" | "diff" if !words.iter().any(|word| *word != "-i" && acts(word)) => true,
        _ if words.iter().any(acts) => false,
        "git" => git_subcommand(&words).is_some_and(|word| LOOKING_GIT_COMMANDS.contains(&word)),
        "sed" => sed_only_prints(arguments),
        // Short options can be joined.
        "sort" => !words.iter().any(|word| word.starts_with('-') && !word.starts_with("--") && word.contains('o')),
        // The second operand is the output.
        "uniq" => words.iter().filter(|word| !word.starts_with('-')).count() < 2,
        program => LOOKING_PROGRAMS.contains(&program),
    }
}

/// Returns true if the arguments of sed are known options, one script that only prints lines, and files.
fn sed_only_prints(arguments: &str) -> bool {
    const PRINTING_OPTIONS: [&str; 7] = ["-n", "-E", "-r", "-s", "-u", "-z", "--quiet"];
    let mut rest = arguments.trim_start();
    let mut is_quiet = false;
    while rest.starts_with('-') {
        let (option, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        if !PRINTING_OPTIONS.contains(&option) {
            return false;
        }
        is_quiet |= ["-n", "--quiet"].contains(&option);
        rest = after.trim_start();
    }
    let quote = rest.chars().next().filter(|first| ['\'', '"'].contains(first));
    let (script, files) = match quote {
        Some(quote) => rest[1..].split_once(quote).unwrap_or((rest, "")),
        None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
    };
    // Between slashes is a pattern; outside are addresses and commands, of which `w` writes a file and `e` runs a command.
    let outside: String = script.split('/').step_by(2).collect();
    let prints = |character: char| character.is_ascii_digit() || ",$;pq=!~+ ".contains(character);
    let has_more_options = files.split_ascii_whitespace().any(|word| word.starts_with('-'));
    is_quiet && !has_more_options && !script.contains("\\/") && !outside.is_empty() && outside.chars().all(prints)
}

/// Returns the subcommand of git, after its own options.
fn git_subcommand<'w>(words: &[&'w str]) -> Option<&'w str> {
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            // This option has a value.
            "-C" => drop(words.next()),
            option if option.starts_with('-') => {}
            subcommand => return Some(subcommand),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names used to be matched by substring: "pull request" contains "open", "notification" contains "cat".
    #[test]
    fn tools_with_side_effects_are_not_looks() {
        let table = ToolTable::default();
        for name in [
            "open_pull_request",
            "send_notification",
            "submit_review",
            "truncate_table",
            "createIssue",
            "mcp__x__post_message",
            "oracle",
            "browser_click",
        ] {
            assert_eq!(table.class(name), ToolClass::Action, "{name}");
        }
        for name in
            ["read_file", "Grep", "list_files", "view", "get_weather", "mcp__fs__read_text_file", "open_file", "LS"]
        {
            assert_eq!(table.class(name), ToolClass::Look, "{name}");
        }
        for (name, class) in [
            ("str_replace_editor", ToolClass::Edit),
            ("apply_patch", ToolClass::Edit),
            ("search_replace", ToolClass::Edit),
            ("write_file", ToolClass::Write),
            ("create_file", ToolClass::Write),
            ("exec_command", ToolClass::Run),
            ("write_stdin", ToolClass::Run),
            ("WebFetch", ToolClass::WebLook),
            ("web_search", ToolClass::WebLook),
            ("browse_page", ToolClass::WebLook),
        ] {
            assert_eq!(table.class(name), class, "{name}");
        }
    }

    #[test]
    fn commands_are_classified_by_what_they_do() {
        let table = ToolTable::default();
        let class = |command: &str| {
            let arguments = serde_json::json!({ "command": command }).to_string();
            table.call_class(&ToolCall::new("c", "bash", arguments))
        };
        for command in [
            "ls -l",
            "cat a.rs | grep x",
            "cd src && rg foo",
            "find . -name '*.rs'",
            "git status",
            "git -C x log --oneline",
            "sed -n '1,20p' a.rs",
            "sed -n '/fn main/,/^}/p' a.rs b.rs",
            "sed -n 5p a.rs",
            "grep -i todo a.rs",
            "sort -u a | uniq",
            "ls missing 2>/dev/null",
            "bash -lc 'cat a'",
        ] {
            assert_eq!(class(command), ToolClass::Look, "{command}");
        }
        for command in [
            "find . -name x -delete",
            "find . -exec rm {} ;",
            "cat a > b",
            "echo x | tee y",
            "git push",
            "rm -rf x",
            "cat $(rm x)",
            "ls; rm x",
            "sed -i s/a/b/ x",
            "curl -X POST url",
            "make",
            "",
            "fd x -x rm",
        ] {
            assert_eq!(class(command), ToolClass::Run, "{command}");
        }
    }

    /// Programs that show something can also write a file or run a command.
    #[test]
    fn looking_programs_that_write_or_run_are_not_looks() {
        for command in [
            "sed -n --in-place s/a/b/p x",
            "sed -n -i 5p x",
            "sed -n -e p -e 'w out' x",
            "sed -n '1e rm x' x",
            "sed -n -f script x",
            "sed -n '/a/w out' x",
            "sed -n '/\\//w x/p' y",
            "sort -uo out in",
            "sort --output=out in",
            "sort --compress-program=./run in",
            "uniq in out",
            "tree -o out",
            "git diff --output=out",
            "git -c core.fsmonitor=./run status",
            "git grep -O x",
            "rg --pre=./run x",
            "fd x --exec=rm",
            "date -s tomorrow",
            "date --set=tomorrow",
            "find . -fprint0 out",
            "bat --pager=./run x",
        ] {
            assert!(!is_read_only_command(command), "{command}");
        }
    }

    #[test]
    fn only_web_output_may_be_summarized() {
        let table = ToolTable::default();
        let exact = |name: &'static str| table.needs_exact_output(&ToolCall::new("c", name, "{}"));
        for name in ["read_file", "git_diff", "session_recall", "bash", "unknown_tool", "grep", "edit_file"] {
            assert!(exact(name), "{name}");
        }
        for name in ["webfetch", "websearch", "WebSearch", "browse"] {
            assert!(!exact(name), "{name}");
        }
        let extended = table.clone().with_rule("unknown_tool", ToolClass::WebLook);
        assert!(!extended.needs_exact_output(&ToolCall::new("c", "unknown_tool", "{}")));
    }
}
