//! Detection of text kinds, failures, definitions and lines.
//!
//! Every function looks at a single text. The rules apply to the output of programs in general; no tool,
//! repository or language gets special treatment beyond its public syntax.

use std::ops::Range;
use std::sync::LazyLock;

use memchr::{memchr, memchr_iter, memchr2_iter, memrchr};
use regex::Regex;

pub use crate::engine::identifiers::extract::{IdentifierKey, IdentifierKind, for_each_identifier};
pub use crate::engine::passes::terminal_codes::strip_terminal_codes;

/// The kind of a text. Decides how it may be shortened, never whether.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TextKind {
    /// A JSON value.
    Json,
    /// A unified diff, or a patch.
    Diff,
    /// Hits of a search: `path:line:text`.
    SearchHits,
    /// Paths, one a line.
    Listing,
    /// Source text, possibly with line numbers in front.
    Source,
    /// Output of a program.
    Log,
    /// Columns under a header.
    Table,
    /// Sentences.
    Prose,
}

/// Detects the kind of a text from a sample of its lines.
pub fn detect_kind(text: &str) -> TextKind {
    let trimmed = text.trim_start();
    if trimmed.starts_with(['{', '[']) && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
        return TextKind::Json;
    }
    let mut lines: Vec<(&str, &str)> = Vec::with_capacity(SAMPLE_LINES);
    sample_lines(text).for_each(|line| {
        let bare = trim_line(without_line_number(line));
        if !bare.is_empty() {
            lines.push((line, bare));
        }
    });
    // True if more than 1/share of the lines match; stops as soon as the result is certain.
    let more_than = |share: usize, is: &dyn Fn(&str, &str) -> bool| {
        let (mut missing, mut spare) = (lines.len() / share + 1, lines.len() - lines.len() / share);
        lines.iter().any(|(line, bare)| {
            if is(line, bare) {
                missing -= 1;
            } else {
                spare -= 1;
            }
            missing == 0 || spare == 0
        }) && missing == 0
    };
    let most = |is: &dyn Fn(&str, &str) -> bool| more_than(2, is);
    // The tests are in the order in which they settle most texts.
    let changes: usize = lines.iter().map(|(line, _)| diff_score(line)).sum();
    if changes * 3 > lines.len() && changes > 4 {
        return TextKind::Diff;
    }
    if most(&|line, _| is_search_hit(line)) {
        return TextKind::SearchHits;
    }
    if most(&|line, bare| is_path(bare) && !is_search_hit(line)) {
        return TextKind::Listing;
    }
    let has_escapes = memchr(0x1b, text.as_bytes()).is_some();
    if most(&|_, bare| is_log_line(bare) || has_escapes && memchr(0x1b, bare.as_bytes()).is_some()) {
        return TextKind::Log;
    }
    let is_source = |line: &str, bare: &str| bare.ends_with(['{', '}', ';', '(', ')', ',', ':']) || is_definition(line);
    match () {
        () if most(&is_source) => TextKind::Source,
        () if most(&is_table_row) => TextKind::Table,
        () if most(&|_, bare| LineShape::scan(bare).words > 6) => TextKind::Prose,
        () if more_than(3, &is_source) => TextKind::Source,
        () => TextKind::Log,
    }
}

/// Scores how much a line looks like a line of a diff.
fn diff_score(line: &str) -> usize {
    match line.as_bytes() {
        [b'@', b'@', b' ', ..] | [b'*', b'*', b'*', b' ', ..] => 4,
        _ if line.starts_with("diff --git") => 4,
        [b'+' | b'-', _, ..] => 1,
        _ => 0,
    }
}

/// Returns true if a line looks like a row of a table.
fn is_table_row(line: &str, bare: &str) -> bool {
    let shape = LineShape::scan(bare);
    shape.pipes > 1 || bare.starts_with('|') || shape.gaps > 2 && line == bare
}

/// Counts of separators and words in a line, found in one scan.
#[derive(Default)]
struct LineShape {
    /// Occurrences of ` | `.
    pipes: usize,
    /// Occurrences of two spaces.
    gaps: usize,
    /// Words of two or more ASCII letters, between spaces.
    words: usize,
}

impl LineShape {
    fn scan(line: &str) -> Self {
        let bytes = line.as_bytes();
        let mut shape = Self::default();
        let (mut start, mut plain, mut blank, mut pipe_end) = (0, true, false, 0);
        for (at, &byte) in bytes.iter().enumerate() {
            if byte != b' ' {
                plain &= byte.is_ascii_alphabetic();
                blank = false;
                continue;
            }
            shape.words += usize::from(plain && at > start + 1);
            (start, plain) = (at + 1, true);
            // A third space in a row starts the next gap.
            shape.gaps += usize::from(blank);
            blank = !blank;
            if at >= pipe_end && bytes[at + 1..].starts_with(b"| ") {
                shape.pipes += 1;
                pipe_end = at + 3;
            }
        }
        shape.words += usize::from(plain && bytes.len() > start + 1);
        shape
    }
}

/// Number of lines sampled to detect the kind of a text.
const SAMPLE_LINES: usize = 60;

/// Returns up to [`SAMPLE_LINES`] lines: the first ones, and for a long text also some from the middle and near the end.
fn sample_lines(text: &str) -> impl Iterator<Item = &str> {
    let positions = [0, text.len() / 2, text.len() - text.len() / 8];
    let count = if text.len() < 4096 { 1 } else { positions.len() };
    positions.into_iter().take(count).flat_map(move |at| {
        let start = memrchr(b'\n', &text.as_bytes()[..at]).map_or(0, |newline| newline + 1);
        let mut rest = &text[start..];
        let lines = std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let Some(end) = memchr(b'\n', rest.as_bytes()) else { return Some(std::mem::take(&mut rest)) };
            let line = &rest[..end];
            rest = &rest[end + 1..];
            Some(line.strip_suffix('\r').unwrap_or(line))
        });
        lines.take(SAMPLE_LINES / count)
    })
}

/// Returns true for lines that start with `path:12:` or `path:12-`, as printed by search tools.
fn is_search_hit(line: &str) -> bool {
    let path = path_prefix(line);
    let Some(rest) = line[path.len()..].strip_prefix(':') else { return false };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    digits > 0 && matches!(rest.as_bytes().get(digits), Some(b':' | b'-')) && is_path(path)
}

fn is_path(text: &str) -> bool {
    // Paths have no colon, which also excludes URLs.
    text.len() < 256 && path_prefix(text).len() == text.len() && text.bytes().any(|byte| matches!(byte, b'/' | b'.'))
}

/// Returns the longest prefix of a text that could be a path.
fn path_prefix(text: &str) -> &str {
    &text[..text.bytes().take_while(|&byte| PATH_BYTES[usize::from(byte)]).count()]
}

/// Table of the bytes that occur in paths.
static PATH_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let value = byte as u8;
        table[byte] = value.is_ascii_alphanumeric()
            || matches!(
                value,
                b'/' | b'.' | b'_' | b'-' | b'@' | b'+' | b'~' | b'[' | b']' | b'(' | b')' | b'$' | b'\\'
            );
        byte += 1;
    }
    table
};

/// Returns true if a line starts with a timestamp or a log level.
fn is_log_line(line: &str) -> bool {
    let head = &line.as_bytes()[..24.min(line.len())];
    let count = |is: fn(&u8) -> bool| head.iter().filter(|byte| is(byte)).count();
    let levels: &[&str] = match head {
        [b'I', ..] => &["INFO"],
        [b'W', ..] => &["WARN"],
        [b'E', ..] => &["ERROR"],
        [b'D', ..] => &["DEBUG"],
        [b'T', ..] => &["TRACE"],
        [b'[', ..] => &["[info]", "[warn]", "[error]"],
        _ => &[],
    };
    count(u8::is_ascii_digit) >= 6 && count(|&byte| byte == b':') >= 2
        || levels.iter().any(|level| line.starts_with(level))
}

/// Removes the line number that a tool printed before a line (`  12→`, `12:`, `12|`, `12\t`).
pub fn without_line_number(line: &str) -> &str {
    let bytes = line.as_bytes();
    if !matches!(bytes, [b' ' | b'0'..=b'9', ..]) {
        return line;
    }
    let Some(start) = bytes.iter().position(|&byte| byte != b' ').filter(|&at| bytes[at].is_ascii_digit()) else {
        return line;
    };
    let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits > 7 {
        return line;
    }
    let rest = &line[start + digits..];
    match rest.strip_prefix(['→', '\t', '|']).or_else(|| rest.strip_prefix(": ")) {
        Some(rest) => rest,
        None if rest == ":" => "",
        None => line,
    }
}

/// Trims a line like `str::trim`, but faster for ASCII.
pub(crate) fn trim_line(line: &str) -> &str {
    let bare = line.trim_ascii();
    match bare.as_bytes() {
        [b'!'..=b'~', .., b'!'..=b'~'] => bare,
        _ => bare.trim(),
    }
}

/// Returns true if nearly every line of a text has a line number, so that gaps need no marker.
pub fn has_line_numbers(text: &str) -> bool {
    let (mut numbered, mut bare) = (0, 0);
    for line in sample_lines(text) {
        if without_line_number(line).len() < line.len() {
            numbered += 1;
        } else if !line.trim().is_empty() {
            bare += 1;
            // Too many already, whatever the remaining lines are.
            if bare > SAMPLE_LINES / 5 {
                return false;
            }
        }
    }
    numbered + bare > 2 && numbered >= bare * 4
}

/// Returns true if a line defines or imports something, in the syntax of common languages.
pub fn is_definition(line: &str) -> bool {
    let bare = without_line_number(line);
    let text = bare.trim_ascii_start();
    if !DEFINITION_PREFIXES.may_match(text.as_bytes()) {
        return false;
    }
    let (mut word, mut rest) = first_word(text);
    while DEFINITION_MODIFIERS.contains(&word) {
        (word, rest) = first_word(rest);
    }
    match word {
        // An indented `let` is a local variable, not a definition.
        "let" | "const" => !bare.starts_with(char::is_whitespace),
        "" => false,
        _ => DEFINITION_KEYWORDS.contains(&word) && !rest.trim_ascii_start().is_empty() || is_heading(bare),
    }
}

/// Splits a text into its first word and the rest.
fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_ascii_start();
    let end = text.bytes().position(|byte| byte.is_ascii_whitespace());
    text.split_at(end.unwrap_or(text.len()))
}

/// Words that may precede the keyword of a definition.
const DEFINITION_MODIFIERS: [&str; 18] = [
    "export",
    "default",
    "pub",
    "pub(crate)",
    "pub(super)",
    "async",
    "static",
    "public",
    "private",
    "protected",
    "abstract",
    "final",
    "override",
    "unsafe",
    "extern",
    "declare",
    "inline",
    "virtual",
];

/// Keywords of definitions and imports.
const DEFINITION_KEYWORDS: [&str; 25] = [
    "func",
    "fn",
    "def",
    "class",
    "struct",
    "enum",
    "trait",
    "impl",
    "type",
    "interface",
    "function",
    "module",
    "mod",
    "package",
    "namespace",
    "import",
    "from",
    "use",
    "#include",
    "#define",
    "macro_rules!",
    "sub",
    "record",
    "protocol",
    "object",
];

/// First letters of definitions and headings.
const DEFINITION_PREFIXES: PrefixFilter = PrefixFilter::new(&DEFINITION_MODIFIERS)
    .union(PrefixFilter::new(&DEFINITION_KEYWORDS))
    .union(PrefixFilter::new(&["let", "const", "# ", "##"]));

/// A filter on the first two letters of a set of words: rejects most texts with one table lookup.
struct PrefixFilter([u32; 32]);

impl PrefixFilter {
    const fn new(words: &[&str]) -> Self {
        let mut seconds = [0; 32];
        let mut at = 0;
        while at < words.len() {
            let word = words[at].as_bytes();
            seconds[word[0] as usize % 32] |= 1 << (word[1] % 32);
            at += 1;
        }
        Self(seconds)
    }

    const fn union(mut self, Self(others): Self) -> Self {
        let mut at = 0;
        while at < 32 {
            self.0[at] |= others[at];
            at += 1;
        }
        self
    }

    /// Returns true if a text may start with one of the words. Compares the low five bits of each byte, which ignores case
    /// and admits a few other bytes.
    fn may_match(&self, text: &[u8]) -> bool {
        let Some(&[first, second]) = text.first_chunk() else { return false };
        self.0[first as usize % 32] >> (second % 32) & 1 != 0
    }
}

pub(crate) fn is_heading(line: &str) -> bool {
    let level = line.bytes().take_while(|&byte| byte == b'#').count();
    (1..=6).contains(&level) && line.as_bytes().get(level) == Some(&b' ')
}

/// Returns true if a line reports a failure: by a common word, or in an uncommon form such as `npm ERR!`, a signal, an
/// exit code, or a word of another language.
pub fn is_failure(line: &str) -> bool {
    has_failure_word(line) || line.len() <= MAX_FAILURE_LINE_BYTES && UNCOMMON_FAILURE.is_match(line)
}

/// Failures without a common word: of npm, the shell, signals, exit codes, test runners, and in other languages.
static UNCOMMON_FAILURE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?ix) \bnpm\ err! | segmentation\ fault | core\ dumped | (^|[\s:\(])killed\b
        | \bno\ such\ (file|module|option|command) | \b(could\ not|couldn't|unable\ to)\b | \bnot\ ok\b
        | out\ of\ memory | \b(enoent|eacces|eperm|eexist|etimedout)\b
        | \bexit(ed)?\ (with\ )?(status|code):?\ *[1-9] | \b(illegal\ instruction|stack\ overflow|non-zero\ exit)\b
        | ^\s*[✗✘❌]
        | \b(fehler|fehlgeschlagen|erreur|échec|échoué|errore|fallito|fallo|falló|falha|falhou|błąd|chyba|virhe|hata:)
        | ошибк | сбой | 错误 | 失败 | 錯誤 | 失敗 | エラー | 오류 | 실패",
    )
    .expect("the pattern is valid")
});

/// A longer line is data, not a report.
const MAX_FAILURE_LINE_BYTES: usize = 2000;

/// Returns true if a line contains a common word for failures. The engine's folds depend on it, so it changes only
/// together with a measurement of the folds; everything else uses [`is_failure`].
pub(crate) fn has_failure_word(line: &str) -> bool {
    // "0 errors", "no failures": counts of zero are not failures.
    const ZERO_COUNT_PHRASES: [&str; 6] = ["0 error", "0 fail", "no error", "no fail", "without error", "errors: 0"];
    if line.len() > MAX_FAILURE_LINE_BYTES {
        return false;
    }
    let bytes = line.as_bytes();
    let may_match = |at: &usize| FAILURE_PREFIXES.may_match(&bytes[*at..]);
    let has_failure_word = (0..bytes.len()).filter(may_match).any(|at| starts_with_failure_word(&bytes[at..]));
    has_failure_word && {
        let lower = line.to_ascii_lowercase();
        !ZERO_COUNT_PHRASES.iter().any(|phrase| lower.contains(phrase))
    }
}

/// Words that indicate a failure, in lower case.
const FAILURE_WORDS: [&str; 16] = [
    "aborted",
    "assert",
    "cannot ",
    "can't ",
    "denied",
    "error",
    "exception",
    "fail",
    "fatal",
    "not found",
    "panic",
    "refused",
    "segfault",
    "timed out",
    "traceback",
    "undefined",
];

const FAILURE_PREFIXES: PrefixFilter = PrefixFilter::new(&FAILURE_WORDS);

fn starts_with_failure_word(text: &[u8]) -> bool {
    FAILURE_WORDS
        .iter()
        .any(|word| text.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word.as_bytes())))
}

/// Returns true if a whole output reports a failure: a non-zero exit code, or a failure in a line near its start or
/// end. Source text that merely mentions errors is not a failure.
pub fn reports_failure(text: &str) -> bool {
    detect_failure_by(text, is_failure).0
}

/// Returns whether an output reports a failure by a common word, and the kind of the text if it was detected.
pub(crate) fn detect_failure(text: &str) -> (bool, Option<TextKind>) {
    detect_failure_by(text, has_failure_word)
}

fn detect_failure_by(text: &str, is_failure: fn(&str) -> bool) -> (bool, Option<TextKind>) {
    let exit = |line: &str| {
        let bytes = line.as_bytes();
        let is_exit = |at: &usize| bytes[*at..].get(..9).is_some_and(|head| head.eq_ignore_ascii_case(b"exit code"));
        // Searches for "x", which is a rare letter.
        let mut starts = memchr2_iter(b'x', b'X', bytes).filter_map(|at| at.checked_sub(1));
        let Some(at) = starts.find(is_exit) else { return false };
        let digits: String = line[at..].chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u32>().is_ok_and(|code| code != 0)
    };
    if text.lines().take(4).any(|line| exit(line) || line.contains("<tool_use_error>")) {
        return (true, None);
    }
    let tail_start = text.floor_char_boundary(text.len().saturating_sub(1500));
    let tail = &text[tail_start..];
    let kind = detect_kind(text);
    let may_mention_errors = matches!(
        kind,
        TextKind::Source | TextKind::Json | TextKind::SearchHits | TextKind::Listing | TextKind::Diff | TextKind::Prose
    );
    let has_failure_line = || {
        tail.lines().any(|line| is_failure(line) || exit(line))
            || text.lines().take(3).any(|line| is_failure(line) && line.len() < 300)
    };
    (!may_mention_errors && has_failure_line(), Some(kind))
}

/// Returns the lines of a text as byte ranges without line breaks.
pub(crate) fn line_ranges(text: &str) -> Vec<Range<usize>> {
    let mut lines = Vec::with_capacity(text.len() / 32 + 1);
    lines.extend(iter_line_ranges(text));
    lines
}

/// Iterates over the lines of a text as byte ranges without line breaks.
pub(crate) fn iter_line_ranges(text: &str) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    // Text after the last line break is a line; an empty text is one empty line.
    let last = (!text.ends_with('\n')).then_some(text.len());
    memchr_iter(b'\n', text.as_bytes()).chain(last).map(move |end| std::mem::replace(&mut start, end + 1)..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_kinds_are_detected() {
        let check = |text: &str, expected| assert_eq!(detect_kind(text), expected, "{text}");
        check(r#"{"a": [1, 2]}"#, TextKind::Json);
        check("diff --git a/x b/x\n@@ -1 +1 @@\n-a b\n+a c\n", TextKind::Diff);
        check("src/a.rs:12:fn a() {}\nsrc/b.rs:4:fn b() {}\n", TextKind::SearchHits);
        check("src/a.rs\nsrc/b.rs\nREADME.md\n", TextKind::Listing);
        check("fn main() {\n    call();\n}\n", TextKind::Source);
        check("     1→fn main() {\n     2→    call();\n     3→}\n", TextKind::Source);
        check("2026-01-02T03:04:05Z starting\n2026-01-02T03:04:06Z ready\n", TextKind::Log);
        check("This is a sentence that has quite a few plain words in it.\n", TextKind::Prose);
    }

    #[test]
    fn zero_error_count_is_not_a_failure() {
        assert!(is_failure("error[E0308]: mismatched types"));
        assert!(is_failure("--- FAIL: TestX (0.00s)"));
        assert!(!is_failure("finished with 0 errors"));
        assert!(reports_failure("running 3 tests\nok\nFAILED: 1 of 3\n"));
        assert!(!reports_failure("fn handle_error() {\n    fail();\n}\n"));
        assert!(reports_failure("Exit code 1\nnothing"));
        assert!(!reports_failure("Exit code 0\nnothing"));
    }

    #[test]
    fn failures_without_a_common_word_are_recognized() {
        for line in [
            "npm ERR! code ELIFECYCLE",
            "Segmentation fault (core dumped)",
            "/bin/sh: line 1: 4242 Killed   ./server",
            "cat: a.txt: No such file or directory",
            "make: *** could not open Makefile",
            "Command exited with code 2",
            "exit status 1",
            "not ok 3 - parses empty lists",
            "✗ parses empty lists",
            "Out of memory",
            "Fehler: Datei fehlt",
            "erreur : fichier introuvable",
            "ошибка: файл отсутствует",
            "错误：文件不存在",
            "エラー: ファイルがありません",
        ] {
            assert!(is_failure(line), "{line}");
        }
        for line in ["exit status 0", "the skilled killer", "exited with code 0", "no such luck", "it is ok"] {
            assert!(!is_failure(line), "{line}");
        }
        assert!(reports_failure("> build\n> tsc\n\nnpm ERR! code ELIFECYCLE\n"));
    }

    #[test]
    fn definitions_with_and_without_line_numbers() {
        for line in
            ["pub fn a()", "  12→export class B {", "def c(x):", "    3\ttype T struct {", "import os", "## Heading"]
        {
            assert!(is_definition(line), "{line}");
        }
        for line in ["return fn", "    let x = 1;", "x = def", "# comment? no, heading"] {
            assert_eq!(is_definition(line), line.starts_with("# "), "{line}");
        }
    }

    /// The filter on the first two letters must accept every word of the lists.
    #[test]
    fn prefix_filter_misses_no_keyword() {
        for word in DEFINITION_KEYWORDS {
            assert!(is_definition(&format!("{word} thing")), "{word}");
        }
        for word in DEFINITION_MODIFIERS {
            assert!(is_definition(&format!("  {word} fn thing")), "{word}");
        }
        for word in FAILURE_WORDS {
            assert!(is_failure(&format!("it: {word}")) && is_failure(&word.to_ascii_uppercase()), "{word}");
        }
    }

    proptest::proptest! {
        #[test]
        fn line_scan_equals_splitting(line in "([a-z|]|  | \\| |1|\u{1b}|é| ){0,30}") {
            let shape = LineShape::scan(&line);
            let is_word = |word: &&str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_alphabetic());
            proptest::prop_assert_eq!(shape.words, line.split(' ').filter(is_word).count());
            proptest::prop_assert_eq!(shape.gaps, line.matches("  ").count());
            proptest::prop_assert_eq!(shape.pipes, line.matches(" | ").count());
        }
    }
}
