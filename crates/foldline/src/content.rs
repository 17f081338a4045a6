//! What a text is, and what stands in it: failures, definitions, names.
//!
//! Everything here looks at one text and nothing else. The rules are those of programs' output in
//! general; no tool, repository or language is privileged beyond its public syntax.

use std::ops::Range;

use memchr::memchr_iter;

pub use crate::pass::screen::shown;

/// What a text is. Decides how it may be shortened, never whether.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A JSON value.
    Json,
    /// A unified diff, or a patch.
    Diff,
    /// Hits of a search: `path:line:text`.
    Hits,
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

/// Recognises a text by a sample of its lines.
pub fn kind(text: &str) -> Kind {
    let trimmed = text.trim_start();
    if trimmed.starts_with(['{', '[']) && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
        return Kind::Json;
    }
    let mut seen = Seen::default();
    for line in sample(text) {
        seen.look(line);
    }
    seen.verdict()
}

#[derive(Default)]
struct Seen {
    lines: usize,
    diff: usize,
    hits: usize,
    paths: usize,
    source: usize,
    log: usize,
    table: usize,
    prose: usize,
}

impl Seen {
    fn look(&mut self, line: &str) {
        let bare = unnumbered(line).trim();
        if bare.is_empty() {
            return;
        }
        self.lines += 1;
        if line.starts_with("@@ ") || line.starts_with("diff --git") || line.starts_with("*** ") {
            self.diff += 4;
        } else if (line.starts_with('+') || line.starts_with('-')) && line.len() > 1 {
            self.diff += 1;
        }
        if is_hit(line) {
            self.hits += 1;
        } else if is_path(bare) {
            self.paths += 1;
        }
        if bare.ends_with(['{', '}', ';', '(', ')', ',', ':']) || is_definition(line) {
            self.source += 1;
        }
        if is_stamped(bare) || line.contains('\u{1b}') {
            self.log += 1;
        }
        if bare.matches(" | ").count() > 1 || bare.starts_with('|') || bare.matches("  ").count() > 2 && line == bare {
            self.table += 1;
        }
        if bare.split(' ').filter(|word| word.len() > 1 && word.bytes().all(|b| b.is_ascii_alphabetic())).count() > 6 {
            self.prose += 1;
        }
    }

    fn verdict(&self) -> Kind {
        let most = |count: usize| count * 2 > self.lines;
        match () {
            () if self.diff * 3 > self.lines && self.diff > 4 => Kind::Diff,
            () if most(self.hits) => Kind::Hits,
            () if most(self.paths) => Kind::Listing,
            () if most(self.log) => Kind::Log,
            () if most(self.source) => Kind::Source,
            () if most(self.table) => Kind::Table,
            () if most(self.prose) => Kind::Prose,
            () if self.source * 3 > self.lines => Kind::Source,
            () => Kind::Log,
        }
    }
}

/// Up to sixty lines from the head, the middle and the tail of a text.
fn sample(text: &str) -> impl Iterator<Item = &str> {
    let around = |at: usize| {
        let at = text.floor_char_boundary(at);
        let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        text[start..].lines().take(20)
    };
    let short = text.len() < 4096;
    let head = text.lines().take(if short { 60 } else { 20 });
    let rest = (!short).then(|| around(text.len() / 2).chain(around(text.len() - text.len() / 8)));
    head.chain(rest.into_iter().flatten())
}

/// `path:12:` or `path:12-`, as search tools print.
fn is_hit(line: &str) -> bool {
    let Some((path, rest)) = line.split_once(':') else { return false };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    digits > 0 && matches!(rest.as_bytes().get(digits), Some(b':' | b'-')) && is_path(path)
}

fn is_path(text: &str) -> bool {
    !text.is_empty()
        && text.len() < 256
        && (text.contains('/') || text.contains('.'))
        && !text.contains("://")
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-@+~[]()$\\".contains(&byte))
}

/// Begins with a time or a level, as log lines do.
fn is_stamped(line: &str) -> bool {
    let head = line.as_bytes().get(..24.min(line.len())).unwrap_or_default();
    let digits = head.iter().filter(|byte| byte.is_ascii_digit()).count();
    let colons = head.iter().filter(|&&byte| byte == b':').count();
    digits >= 6 && colons >= 2
        || ["INFO", "WARN", "ERROR", "DEBUG", "TRACE", "[info]", "[warn]", "[error]"]
            .iter()
            .any(|level| line.starts_with(level))
}

/// A line without the line number that a tool printed in front of it (`  12→`, `12:`, `12|`, `12\t`).
pub fn unnumbered(line: &str) -> &str {
    let start = line.trim_start_matches(' ');
    let digits = start.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 || digits > 7 {
        return line;
    }
    let rest = &start[digits..];
    match rest.strip_prefix(['→', '\t', '|']).or_else(|| rest.strip_prefix(": ")) {
        Some(rest) => rest,
        None if rest == ":" => "",
        None => line,
    }
}

/// Whether nearly every line of a text carries its line number, so that a gap shows by itself.
pub fn is_numbered(text: &str) -> bool {
    let (mut numbered, mut all) = (0, 0);
    for line in sample(text).filter(|line| !line.trim().is_empty()) {
        all += 1;
        numbered += usize::from(unnumbered(line).len() < line.len());
    }
    all > 2 && numbered * 10 >= all * 8
}

/// Whether a line defines or imports something, in the public syntax of common languages.
pub fn is_definition(line: &str) -> bool {
    const BEFORE: [&str; 18] = [
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
    const OPENS: [&str; 27] = [
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
        "const",
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
        "let",
    ];
    let bare = unnumbered(line);
    let indent = bare.len() - bare.trim_start().len();
    let mut words = bare.split_ascii_whitespace().skip_while(|word| BEFORE.contains(word));
    match words.next() {
        // A local variable is a statement, not a definition that others refer to.
        Some("let" | "const") => indent == 0,
        Some(word) => OPENS.contains(&word) && words.next().is_some() || is_heading(bare),
        None => false,
    }
}

pub(crate) fn is_heading(line: &str) -> bool {
    let level = line.bytes().take_while(|&byte| byte == b'#').count();
    (1..=6).contains(&level) && line.as_bytes().get(level) == Some(&b' ')
}

/// Whether a line says that something went wrong.
pub fn is_failure(line: &str) -> bool {
    const SIGNS: [&str; 16] = [
        "error",
        "fail",
        "panic",
        "exception",
        "traceback",
        "fatal",
        "assert",
        "cannot ",
        "can't ",
        "not found",
        "denied",
        "refused",
        "undefined",
        "segfault",
        "timed out",
        "aborted",
    ];
    // "0 errors", "no failures", "error handling" in passing: the counts of zero are what matters.
    const NONE: [&str; 6] = ["0 error", "0 fail", "no error", "no fail", "without error", "errors: 0"];
    if line.len() > 2000 {
        return false;
    }
    let mut lower = [0; 2000];
    let lower = &mut lower[..line.len()];
    lower.copy_from_slice(line.as_bytes());
    lower.make_ascii_lowercase();
    let has = |sign: &&str| memchr::memmem::find(lower, sign.as_bytes()).is_some();
    SIGNS.iter().any(&has) && !NONE.iter().any(has)
}

/// Whether a whole output reports a failure: a non-zero exit, or a line near its end or head that
/// says so. Source text that merely mentions errors does not.
pub fn reports_failure(text: &str) -> bool {
    let exit = |line: &str| {
        let Some(at) = line.to_ascii_lowercase().find("exit code") else { return false };
        let digits: String = line[at..].chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u32>().is_ok_and(|code| code != 0)
    };
    if text.lines().take(4).any(|line| exit(line) || line.contains("<tool_use_error>")) {
        return true;
    }
    let tail_start = text.floor_char_boundary(text.len().saturating_sub(1500));
    let tail = &text[tail_start..];
    if matches!(kind(text), Kind::Source | Kind::Json | Kind::Hits | Kind::Listing | Kind::Diff | Kind::Prose) {
        return false;
    }
    tail.lines().any(|line| is_failure(line) || exit(line))
        || text.lines().take(3).any(|line| is_failure(line) && line.len() < 300)
}

/// A name that stands in a text: what later actions refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atom {
    /// Hash of its bytes.
    pub key: u64,
    /// What kind of name it is.
    pub kind: AtomKind,
}

/// The kinds of names, from the most to the least telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AtomKind {
    /// `src/main.rs`
    Path,
    /// `config.window`
    Dotted,
    /// `read_file`, `readFile`, `utf8`
    Identifier,
    /// `4096`
    Number,
}

/// Calls `visit` with every name in a text, in order, and with its place. Plain words are none: they say nothing about
/// where they come from. A path and a dotted name come whole and then in pieces, since either may be said alone.
///
/// ```
/// let mut names = Vec::new();
/// let text = "see src/read_file.rs, then 4096";
/// foldline::content::atoms(text, |_, place| names.push(&text[place]));
/// assert_eq!(names, ["src/read_file.rs", "read_file.rs", "read_file", "4096"]);
/// ```
pub fn atoms(text: &str, mut visit: impl FnMut(Atom, Range<usize>)) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !WORD[bytes[at] as usize] {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && (WORD[bytes[at] as usize] || JOIN[bytes[at] as usize]) {
            at += 1;
        }
        let mut end = at;
        while JOIN[bytes[end - 1] as usize] {
            end -= 1;
        }
        in_token(&bytes[start..end], start, &mut visit);
    }
}

/// The names in a run of words and what joins them.
fn in_token(token: &[u8], start: usize, visit: &mut impl FnMut(Atom, Range<usize>)) {
    if token.len() < 3 {
        return;
    }
    let mut say = |place: Range<usize>, kind| {
        let key = xxhash_rust::xxh3::xxh3_64(&token[place.clone()]);
        visit(Atom { key, kind }, start + place.start..start + place.end);
    };
    let whole = 0..token.len();
    if !token.iter().any(|&byte| JOIN[byte as usize]) {
        return word_kind(token).into_iter().for_each(|kind| say(whole.clone(), kind));
    }
    let (path, digit) = (token.contains(&b'/'), token.iter().any(u8::is_ascii_digit));
    match () {
        () if path => say(whole, AtomKind::Path),
        () if token.contains(&b'.') => say(whole, AtomKind::Dotted),
        () if digit => say(whole, AtomKind::Identifier),
        () => {}
    }
    for segment in split(token, 0..token.len(), b"/@") {
        if path && segment.len() > 3 && token[segment.clone()].contains(&b'.') {
            say(segment.clone(), AtomKind::Dotted);
        }
        for word in split(token, segment, b".-") {
            word_kind(&token[word.clone()]).into_iter().for_each(|kind| say(word.clone(), kind));
        }
    }
}

/// The pieces of a part of a token between these signs.
fn split<'t>(token: &'t [u8], part: Range<usize>, at: &'static [u8]) -> impl Iterator<Item = Range<usize>> + 't {
    let mut start = part.start;
    token[part].split(|byte| at.contains(byte)).map(move |piece| {
        let place = start..start + piece.len();
        start = place.end + 1;
        place
    })
}

/// ASCII letters, digits and `_`.
const WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let it = byte as u8;
        table[byte] = it.is_ascii_alphanumeric() || it == b'_';
        byte += 1;
    }
    table
};

/// What joins words to one name.
const JOIN: [bool; 256] = {
    let mut table = [false; 256];
    table[b'.' as usize] = true;
    table[b'/' as usize] = true;
    table[b'-' as usize] = true;
    table[b'@' as usize] = true;
    table
};

/// A number of three digits and more, or a word that is written as no plain word is.
fn word_kind(word: &[u8]) -> Option<AtomKind> {
    if word.len() < 3 {
        return None;
    }
    let (mut letters, mut digits, mut lower, mut hump, mut bar) = (false, false, false, false, false);
    for (at, &byte) in word.iter().enumerate() {
        match byte {
            b'0'..=b'9' => digits = true,
            b'_' => bar = true,
            b'A'..=b'Z' => {
                letters = true;
                hump |= at > 0;
            }
            _ => {
                letters = true;
                lower = true;
            }
        }
    }
    match letters {
        false => (!bar).then_some(AtomKind::Number),
        true => (word.len() > 3 && (bar || hump && lower || digits)).then_some(AtomKind::Identifier),
    }
}

/// The lines of a text as byte ranges without their line breaks.
pub(crate) fn lines(text: &str) -> Vec<Range<usize>> {
    let mut lines = Vec::with_capacity(text.len() / 32 + 1);
    let mut start = 0;
    for newline in memchr_iter(b'\n', text.as_bytes()) {
        lines.push(start..newline);
        start = newline + 1;
    }
    if start < text.len() || lines.is_empty() {
        lines.push(start..text.len());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&str> {
        let mut names = Vec::new();
        atoms(text, |_, place| names.push(&text[place]));
        names
    }

    #[test]
    fn names_are_atoms_and_words_are_not() {
        assert_eq!(
            names("see src/wire/mod.rs: fn read_file(config.window) is 4096, utf8, readAll. The end, a-b."),
            ["src/wire/mod.rs", "mod.rs", "read_file", "config.window", "4096", "utf8", "readAll"]
        );
        assert_eq!(names("self.read_all(db-7)"), ["self.read_all", "read_all", "db-7"]);
    }

    #[test]
    fn kinds_are_recognised_by_what_the_text_is() {
        let check = |text: &str, expected| assert_eq!(kind(text), expected, "{text}");
        check(r#"{"a": [1, 2]}"#, Kind::Json);
        check("diff --git a/x b/x\n@@ -1 +1 @@\n-a b\n+a c\n", Kind::Diff);
        check("src/a.rs:12:fn a() {}\nsrc/b.rs:4:fn b() {}\n", Kind::Hits);
        check("src/a.rs\nsrc/b.rs\nREADME.md\n", Kind::Listing);
        check("fn main() {\n    call();\n}\n", Kind::Source);
        check("     1→fn main() {\n     2→    call();\n     3→}\n", Kind::Source);
        check("2026-01-02T03:04:05Z starting\n2026-01-02T03:04:06Z ready\n", Kind::Log);
        check("This is a sentence that has quite a few plain words in it.\n", Kind::Prose);
    }

    #[test]
    fn a_count_of_no_errors_is_no_failure() {
        assert!(is_failure("error[E0308]: mismatched types"));
        assert!(is_failure("--- FAIL: TestX (0.00s)"));
        assert!(!is_failure("finished with 0 errors"));
        assert!(reports_failure("running 3 tests\nok\nFAILED: 1 of 3\n"));
        assert!(!reports_failure("fn handle_error() {\n    fail();\n}\n"));
        assert!(reports_failure("Exit code 1\nnothing"));
        assert!(!reports_failure("Exit code 0\nnothing"));
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
}
