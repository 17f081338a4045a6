//! Commands of the root model on the text: tools, their declarations, and the parsing of calls.
//!
//! Models with tool support call tools; for the others, a line is a command. Both are parsed strictly: an invalid
//! command is reported to the model and never guessed at, and `FINALLY` is not `FINAL`.

use foldline::conversation::ToolCall;
use foldline::wire::ToolSpec;
use serde_json::Value;

/// A command of the root model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RootCommand {
    Head { rows: usize },
    Tail { rows: usize },
    Grep { pattern: String, from: usize },
    Count { pattern: String },
    Slice { first: usize, last: usize },
    Chunks,
    Ask { first: usize, last: usize, question: String },
    Final { text: String },
}

/// Number of rows that are shown by default.
const DEFAULT_ROWS: usize = 40;

pub(crate) const FINAL_TOOL: ToolSpec<'static> = ToolSpec {
    name: "final",
    description: "Hand in the finished briefing. Call it alone, once you have seen what you need.",
    parameters: r#"{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}"#,
};

pub(crate) const ROOT_TOOLS: [ToolSpec<'static>; 8] = [
    ToolSpec {
        name: "head",
        description: "Show the first rows of the text.",
        parameters: r#"{"type":"object","properties":{"rows":{"type":"integer"}}}"#,
    },
    ToolSpec {
        name: "tail",
        description: "Show the last rows of the text.",
        parameters: r#"{"type":"object","properties":{"rows":{"type":"integer"}}}"#,
    },
    ToolSpec {
        name: "grep",
        description: "Show the rows that match a regular expression, from a row on.",
        parameters: r#"{"type":"object","properties":{"pattern":{"type":"string"},"from":{"type":"integer"}},"required":["pattern"]}"#,
    },
    ToolSpec {
        name: "count",
        description: "Count the lines that match a regular expression.",
        parameters: r#"{"type":"object","properties":{"pattern":{"type":"string"}},"required":["pattern"]}"#,
    },
    ToolSpec {
        name: "slice",
        description: "Show rows, from the first to the last.",
        parameters: r#"{"type":"object","properties":{"first":{"type":"integer"},"last":{"type":"integer"}},"required":["first","last"]}"#,
    },
    ToolSpec {
        name: "chunks",
        description: "Show where errors, headings, turns and definitions begin in the whole text.",
        parameters: r#"{"type":"object","properties":{}}"#,
    },
    ToolSpec {
        name: "ask",
        description: "Let another model read many rows and answer a question about them. Several calls at once run at the same time.",
        parameters: r#"{"type":"object","properties":{"first":{"type":"integer"},"last":{"type":"integer"},"question":{"type":"string"}},"required":["first","last","question"]}"#,
    },
    FINAL_TOOL,
];

/// The command list for a model without tool support.
pub(crate) const COMMAND_SYNTAX: &str = "\
Write commands, each on a line of its own, and nothing else:
HEAD 40
TAIL 40
GREP pattern
COUNT pattern
SLICE first last
CHUNKS
ASK first last question (another model reads these rows and answers)
or, once you have seen what you need, hand in the briefing:
FINAL
the briefing
END";

impl RootCommand {
    /// Parses a tool call.
    pub(crate) fn from_call(call: &ToolCall<'_>) -> Result<Self, String> {
        let text = call.arguments.as_str();
        let arguments: Value = match text.trim() {
            "" => Value::Object(serde_json::Map::new()),
            text => serde_json::from_str(text).map_err(|error| format!("the arguments are no JSON: {error}"))?,
        };
        let number = |key: &str| match &arguments[key] {
            Value::Null => Ok(None),
            // Some models write numbers as strings, or with a decimal point.
            Value::String(text) => text.trim().parse().map(Some).map_err(|_| format!("`{key}` is not a number")),
            value => {
                match value.as_u64().or_else(|| value.as_f64().filter(|value| *value >= 0.0).map(|value| value as u64))
                {
                    Some(number) => Ok(Some(number as usize)),
                    None => Err(format!("`{key}` is not a number of a row")),
                }
            }
        };
        let required = |key: &str| number(key)?.ok_or_else(|| format!("`{key}` is missing"));
        let string = |key: &str| match arguments[key].as_str() {
            Some(text) if !text.trim().is_empty() => Ok(text.to_owned()),
            _ => Err(format!("`{key}` is missing, or not a text")),
        };
        Ok(match &*call.name {
            "head" => RootCommand::Head { rows: number("rows")?.unwrap_or(DEFAULT_ROWS) },
            "tail" => RootCommand::Tail { rows: number("rows")?.unwrap_or(DEFAULT_ROWS) },
            "grep" => RootCommand::Grep { pattern: string("pattern")?, from: number("from")?.unwrap_or(0) },
            "count" => RootCommand::Count { pattern: string("pattern")? },
            "slice" => RootCommand::Slice { first: required("first")?, last: required("last")? },
            "chunks" => RootCommand::Chunks,
            "ask" => {
                RootCommand::Ask { first: required("first")?, last: required("last")?, question: string("question")? }
            }
            "final" => RootCommand::Final { text: arguments["text"].as_str().unwrap_or_default().to_owned() },
            name => return Err(format!("there is no tool `{}`", &name[..name.floor_char_boundary(40)])),
        })
    }

    /// Parses the commands in a text, in order. A line that starts with a command word and is not valid is an
    /// error; every other line is prose.
    pub(crate) fn parse_text(text: &str) -> Vec<Result<Self, String>> {
        let mut commands = Vec::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let line = line.trim();
            if let Some(rest) = line.strip_prefix("FINAL(") {
                // The call may span lines.
                let mut call = rest.to_owned();
                while !is_closed_call(&call) {
                    let Some(line) = lines.next() else { break };
                    call.push('\n');
                    call.push_str(line.trim_end());
                }
                commands.push(parse_final_call(&call).map(|text| RootCommand::Final { text }));
            } else if line == "FINAL" {
                let body: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "END").collect();
                commands.push(Ok(RootCommand::Final { text: body.join("\n") }));
            } else if let Some(command) = Self::parse_line(line) {
                commands.push(command.map_err(|why| format!("`{}`: {why}", &line[..line.floor_char_boundary(80)])));
            }
        }
        commands
    }

    fn parse_line(line: &str) -> Option<Result<Self, String>> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        let number = |text: &str| text.parse::<usize>().map_err(|_| "wants numbers of rows".to_owned());
        let rows = || if rest.is_empty() { Ok(DEFAULT_ROWS) } else { number(rest) };
        let pattern = || if rest.is_empty() { Err("wants a pattern".to_owned()) } else { Ok(rest.to_owned()) };
        Some(match word {
            "HEAD" => rows().map(|rows| RootCommand::Head { rows }),
            "TAIL" => rows().map(|rows| RootCommand::Tail { rows }),
            "GREP" => pattern().map(|pattern| RootCommand::Grep { pattern, from: 0 }),
            "COUNT" => pattern().map(|pattern| RootCommand::Count { pattern }),
            "CHUNKS" if rest.is_empty() => Ok(RootCommand::Chunks),
            "SLICE" => match rest.split_ascii_whitespace().collect::<Vec<_>>()[..] {
                [first, last] => number(first).and_then(|first| Ok(RootCommand::Slice { first, last: number(last)? })),
                _ => Err("wants the first row and the last".to_owned()),
            },
            "ASK" => {
                let mut words = rest.splitn(3, ' ');
                match (words.next(), words.next(), words.next()) {
                    (Some(first), Some(last), Some(question)) if !question.trim().is_empty() => {
                        number(first).and_then(|first| {
                            Ok(RootCommand::Ask { first, last: number(last)?, question: question.trim().to_owned() })
                        })
                    }
                    _ => Err("wants the first row, the last, and a question".to_owned()),
                }
            }
            _ => return None,
        })
    }

    /// Returns the name of the tool.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            RootCommand::Head { .. } => "head",
            RootCommand::Tail { .. } => "tail",
            RootCommand::Grep { .. } => "grep",
            RootCommand::Count { .. } => "count",
            RootCommand::Slice { .. } => "slice",
            RootCommand::Chunks => "chunks",
            RootCommand::Ask { .. } => "ask",
            RootCommand::Final { .. } => "final",
        }
    }
}

/// The quotes in which a text may be submitted, the longest first.
const QUOTES: [&str; 4] = ["\"\"\"", "'''", "\"", "'"];

/// Returns true if the arguments of `FINAL(` end here.
fn is_closed_call(call: &str) -> bool {
    let Some(inside) = call.trim_end().strip_suffix(')').map(str::trim_end) else { return false };
    match QUOTES.iter().find(|quote| call.trim_start().starts_with(**quote)) {
        Some(quote) => inside.trim_start().len() >= 2 * quote.len() && inside.ends_with(quote),
        None => true,
    }
}

/// Parses the arguments of `FINAL(`: a text in quotes, or without.
fn parse_final_call(call: &str) -> Result<String, String> {
    let inside = call.trim().strip_suffix(')').ok_or("`FINAL(` has no closing parenthesis")?.trim();
    let Some(quote) = QUOTES.iter().find(|quote| inside.starts_with(**quote)) else { return Ok(inside.to_owned()) };
    let text = inside.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    let text = text.ok_or_else(|| format!("`FINAL(` has no closing {quote}"))?;
    // A text with escapes is usually a JSON string; if it is not one, it is taken as written.
    let unescaped = text.contains('\\').then(|| serde_json::from_str(&format!("\"{text}\"")).ok()).flatten();
    Ok(unescaped.unwrap_or_else(|| text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &'static str, arguments: &'static str) -> Result<RootCommand, String> {
        RootCommand::from_call(&ToolCall::new("c", name, arguments))
    }

    #[test]
    fn calls_are_strict_and_numbers_lenient() {
        assert_eq!(call("head", ""), Ok(RootCommand::Head { rows: 40 }));
        assert_eq!(call("slice", r#"{"first":"3","last":9.0}"#), Ok(RootCommand::Slice { first: 3, last: 9 }));
        assert_eq!(call("slice", r#"{"first":3}"#), Err("`last` is missing".into()));
        assert_eq!(call("slice", r#"{"first":-3,"last":1}"#), Err("`first` is not a number of a row".into()));
        assert_eq!(call("grep", r#"{"pattern":" "}"#), Err("`pattern` is missing, or not a text".into()));
        assert_eq!(call("rm", "{}"), Err("there is no tool `rm`".into()));
        assert!(call("head", "{").is_err());
        for tool in ROOT_TOOLS {
            assert!(serde_json::from_str::<Value>(tool.parameters).is_ok(), "{}", tool.name);
        }
    }

    #[test]
    fn finally_is_not_final() {
        assert_eq!(RootCommand::parse_text("FINALLY I am done.\nFINAL answer: 3\nThe FINAL"), []);
        assert_eq!(
            RootCommand::parse_text("so\nFINAL\nGoal: x\nGREP y\nEND\nGREP z"),
            [
                Ok(RootCommand::Final { text: "Goal: x\nGREP y".into() }),
                Ok(RootCommand::Grep { pattern: "z".into(), from: 0 })
            ]
        );
    }

    #[test]
    fn final_call_with_quotes_is_final() {
        let parse = |text: &str| RootCommand::parse_text(text);
        let submitted = |text: &str| [Ok(RootCommand::Final { text: text.into() })];
        assert_eq!(parse("FINAL(\"Goal: x\")"), submitted("Goal: x"));
        assert_eq!(parse("so\nFINAL('Goal: x (y)')\nbye"), submitted("Goal: x (y)"));
        assert_eq!(parse("FINAL(\"\"\"Goal: x\nState: (a)\nend\"\"\")"), submitted("Goal: x\nState: (a)\nend"));
        assert_eq!(parse(r#"FINAL("Goal: \"x\"\nState: y")"#), submitted("Goal: \"x\"\nState: y"));
        assert_eq!(parse("FINAL(Goal: x)"), submitted("Goal: x"));
        assert_eq!(parse("FINALLY(\"x\")\nFINALLY I am done"), []);
        assert!(parse("FINAL(\"never closed").iter().all(Result::is_err));
    }

    #[test]
    fn lines_parse_to_commands_prose_or_errors() {
        assert_eq!(
            RootCommand::parse_text(
                "Let me look.\nHEAD\nSLICE 3 9\nASK 1 90 what failed there?\nCHUNKS\nHEADING for it"
            ),
            [
                Ok(RootCommand::Head { rows: 40 }),
                Ok(RootCommand::Slice { first: 3, last: 9 }),
                Ok(RootCommand::Ask { first: 1, last: 90, question: "what failed there?".into() }),
                Ok(RootCommand::Chunks),
            ]
        );
        let errors = RootCommand::parse_text("SLICE a b\nSLICE 1\nASK 1 2\nGREP");
        assert!(errors.len() == 4 && errors.iter().all(Result::is_err), "{errors:?}");
    }
}
