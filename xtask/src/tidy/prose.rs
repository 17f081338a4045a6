//! The prose of a file: comments and strings of Rust code, the whole text of other files.
//!
//! Code is not prose: an identifier is judged by the rules for names.

use crate::repository::RepoFile;
use crate::source_tree::is_rust;

/// A piece of text that people read.
#[derive(Debug, PartialEq)]
pub(crate) struct ProseText<'f> {
    pub(crate) line: usize,
    pub(crate) kind: ProseKind,
    pub(crate) text: &'f str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ProseKind {
    Comment,
    StringLiteral,
    Document,
}

/// Extensions of files that are prose as a whole, or small enough to be read as such.
const DOCUMENT_EXTENSIONS: [&str; 8] = [".css", ".csv", ".html", ".js", ".md", ".py", ".sh", ".toml"];

/// Returns the prose of a file; nothing for data.
pub(crate) fn prose(file: &RepoFile) -> Vec<ProseText<'_>> {
    if is_rust(file) {
        return rust_prose(&file.text);
    }
    if !DOCUMENT_EXTENSIONS.iter().any(|extension| file.path.ends_with(extension)) {
        return Vec::new();
    }
    let lines = file.text.lines().enumerate();
    lines.map(|(at, text)| ProseText { line: at + 1, kind: ProseKind::Document, text }).collect()
}

/// Finds comments and string literals with a small scanner, because a parser drops comments.
fn rust_prose(text: &str) -> Vec<ProseText<'_>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &text[at..];
        let (length, kind) = match bytes[at] {
            b'/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), Some(ProseKind::Comment)),
            b'/' if rest.starts_with("/*") => (block_comment_length(rest), Some(ProseKind::Comment)),
            b'"' => (string_length(rest), Some(ProseKind::StringLiteral)),
            b'\'' => (char_length(rest), None),
            b'r' | b'b' | b'c' if !ends_with_word(&text[..at]) => match raw_string_length(rest) {
                Some(length) => (length, Some(ProseKind::StringLiteral)),
                None => (1, None),
            },
            _ => (rest.chars().next().map_or(1, char::len_utf8), None),
        };
        if let Some(kind) = kind {
            found.push(ProseText { line, kind, text: &rest[..length] });
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

fn ends_with_word(text: &str) -> bool {
    text.ends_with(|last: char| last.is_alphanumeric() || last == '_')
}

fn block_comment_length(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let step = match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Returns the length of a character literal, or 1 for the mark of a lifetime.
fn char_length(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let from = at + escaped.len_utf8();
            text[from..].find('\'').map_or(1, |end| from + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

fn raw_string_length(text: &str) -> Option<usize> {
    let marked = text.trim_start_matches(['b', 'c']).strip_prefix('r')?;
    let hashes = marked.len() - marked.trim_start_matches('#').len();
    let content = marked[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let begin = text.len() - content.len();
    content.find(&end).map(|at| begin + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        rust_prose(text).iter().map(|prose| prose.text).collect()
    }

    #[test]
    fn comments_and_strings_are_found_and_code_is_not() {
        let text = "//! Head.\nfn f<'a>(c: char) { g(\"a \\\" b\", '\"', 'x', r#\"raw \"it\"\"#) } /* b /* c */ */ let bar = 1; // d";
        let found = ["//! Head.", "\"a \\\" b\"", "r#\"raw \"it\"\"#", "/* b /* c */ */", "// d"];
        assert_eq!(texts(text), found);
    }

    #[test]
    fn lines_are_counted() {
        let found = rust_prose("// a\n\"b\nc\" // d\n");
        assert_eq!(found.iter().map(|prose| prose.line).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn data_is_not_prose() {
        let file = |path: &str| RepoFile { path: path.into(), text: "a\nb\n".into() };
        assert_eq!(prose(&file("a.json")).len(), 0);
        assert_eq!(prose(&file("a.md")).len(), 2);
    }
}
