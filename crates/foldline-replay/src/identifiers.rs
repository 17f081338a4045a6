//! Identifiers: the exact references in a text that are evidence of where it came from.
//!
//! An identifier is a path, a URL, a dotted name, a qualified name (`a::b`, `a:b`), a name with
//! structure (`snake_case`, `camelCase`, `kebab-case-name`, `--flag`, letters with digits, a hash), a
//! constant in capitals, or a number of three or more digits. Plain words are not evidence: they appear
//! everywhere. Whether two hyphenated words are a name depends on the conversation, so their class is
//! passed on. This is separate code from the engine's, which must not mark its own work.

/// Certainty that a found text is an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentifierClass {
    /// An identifier wherever it is.
    Certain,
    /// Hyphenated words next to a quote, bracket or operator: a name if they are used twice like this.
    HyphenatedInCode,
    /// Hyphenated words inside a sentence.
    HyphenatedInProse,
    /// A word in capitals: a constant unless it is an English word.
    Capitals,
}

/// Calls `visit` with every possible identifier of a line and its class, in order, including repeats.
///
/// A path is visited whole, then its parts; so a file's name also counts without
/// its folder.
///
/// ```
/// let mut seen = Vec::new();
/// let line = "see src/fold_line.rs:120, it was fmt::readFile --dry-run (or so)";
/// foldline_replay::for_each_identifier(line, |it, _| seen.push(it.to_owned()));
/// let expected = ["src/fold_line.rs", "fold_line.rs", "fold_line", "120", "fmt::readFile", "readFile", "--dry-run"];
/// assert_eq!(seen, expected);
/// ```
pub fn for_each_identifier<'t>(line: &'t str, mut visit: impl FnMut(&'t str, IdentifierClass)) {
    let bytes = line.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !is_run_byte(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        let (mut has_colon, mut has_slash) = (false, false);
        while at < bytes.len() && is_run_byte(bytes[at]) {
            has_colon |= bytes[at] == b':';
            has_slash |= bytes[at] == b'/';
            at += 1;
        }
        if has_colon && has_slash && line[start..at].contains("://") {
            at = visit_url(line, start, &mut visit);
            continue;
        }
        let is_delimiter = |at: usize| bytes.get(at).is_some_and(|byte| CODE_DELIMITERS.contains(byte));
        let in_code = is_delimiter(at) || start.checked_sub(1).is_some_and(is_delimiter);
        // Runs are ASCII, so their ends are character boundaries.
        let run = &line[start..at];
        if is_plain_word(run) {
            continue;
        }
        if !has_colon {
            visit_run(run, in_code, &mut visit);
            continue;
        }
        let whole = trim_to_words(run);
        if is_qualified_name(whole) {
            visit(whole, IdentifierClass::Certain);
        }
        run.split(':').for_each(|piece| visit_run(piece, in_code, &mut visit));
    }
}

/// Returns true for a word in lower case, or with a capital in front, with punctuation after it and at most one byte of
/// it before. Most runs are such a word, and nothing in it is an identifier.
fn is_plain_word(run: &str) -> bool {
    let bytes = run.as_bytes();
    let start = usize::from(!is_word_byte(bytes[0]));
    let Some((first, rest)) = bytes[start..].split_first() else { return true };
    let word = rest.iter().take_while(|byte| byte.is_ascii_lowercase()).count();
    first.is_ascii_alphabetic() && !rest[word..].iter().any(|&byte| is_word_byte(byte))
}

/// Bytes next to a name in code, and rarely next to a word in a sentence.
const CODE_DELIMITERS: &[u8] = b"\"'`=(){}[]<>$#;|&\\";

/// Visits a URL and the names in it. Returns its end.
fn visit_url<'t>(line: &'t str, start: usize, visit: &mut impl FnMut(&'t str, IdentifierClass)) -> usize {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || !byte.is_ascii() || b"\"'`<>()[]{}|\\^".contains(byte);
    let length = line.as_bytes()[start..].iter().position(is_end).unwrap_or(line.len() - start);
    let url = line[start..start + length].trim_end_matches(['.', ',', ';', ':', '!', '?', '*', '_']);
    let begin = url.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
    if url.len() - begin > 10 {
        visit(&url[begin..], IdentifierClass::Certain);
    }
    let inside = url.split_once("://").map_or(url, |(_, rest)| rest);
    inside.split(|c: char| !is_run_byte(c as u8) || c == ':').for_each(|piece| visit_run(piece, true, visit));
    start + length
}

/// Returns true for `std::fmt` and `node:fs`, but not for `12:30:00` or `x:y:z`.
fn is_qualified_name(text: &str) -> bool {
    let is_name = |part: &str| part.len() > 1 && part.bytes().any(|byte| byte.is_ascii_alphanumeric());
    let starts_with_name = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if text.len() < 5 || !starts_with_name || text.contains('/') {
        return false;
    }
    match text.contains("::") {
        true => text.split("::").all(|part| !part.is_empty() && !part.contains(':')),
        false => {
            text.split_once(':').is_some_and(|(left, right)| is_name(left) && is_name(right) && !right.contains(':'))
        }
    }
}

/// Strips everything except letters, digits and underscores from both ends of a run, which is ASCII.
fn trim_to_words(text: &str) -> &str {
    let bytes = text.as_bytes();
    let start = bytes.iter().position(|&byte| is_word_byte(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|&byte| is_word_byte(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

/// Visits the identifiers of a run: a sequence of characters that may be part of a path.
fn visit_run<'t>(run: &'t str, in_code: bool, visit: &mut impl FnMut(&'t str, IdentifierClass)) {
    let text = trim_to_words(run);
    if text.len() < 3 {
        return;
    }
    if let Some(flag) = long_flag(run) {
        visit(flag, IdentifierClass::Certain);
        flag.split('-').for_each(|word| visit_word(word, visit));
    } else if text.contains('/') {
        if is_path(text) {
            visit(text, IdentifierClass::Certain);
        }
        text.split(['/', '~', '@', '+']).for_each(|segment| visit_name(segment, true, visit));
    } else if text.contains(['~', '@', '+']) {
        text.split(['~', '@', '+']).for_each(|segment| visit_name(segment, in_code, visit));
    } else {
        visit_name(text, in_code, visit);
    }
}

/// Returns the flag of a command, such as `--set-metadata`, with its dashes.
fn long_flag(run: &str) -> Option<&str> {
    let name = run.strip_prefix("--").filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()))?;
    let name = name.trim_end_matches(|c: char| !is_word_byte(c as u8));
    let is_flag = name.len() > 2 && name.bytes().all(|byte| is_word_byte(byte) || byte == b'-');
    is_flag.then(|| &run[..name.len() + 2])
}

/// Visits the identifiers of a path segment, or of a dotted or hyphenated name.
fn visit_name<'t>(text: &'t str, in_code: bool, visit: &mut impl FnMut(&'t str, IdentifierClass)) {
    let text = trim_to_words(text);
    if text.len() < 3 {
        return;
    }
    if text.contains('.') {
        let letters = text.bytes().any(|byte| byte.is_ascii_alphabetic());
        let digits = text.bytes().filter(u8::is_ascii_digit).count();
        if text.len() > 3 && (letters || digits >= 3) {
            visit(text, IdentifierClass::Certain);
        }
    } else if let Some(class) = hyphenated_class(text, in_code) {
        visit(text, class);
    }
    text.split(['.', '-']).for_each(|word| visit_word(word, visit));
}

/// Words that join others in hyphenated English: `step-by-step`, `out-of-date`.
const CONNECTIVES: [&str; 16] =
    ["a", "an", "and", "as", "at", "by", "for", "in", "it", "of", "on", "or", "the", "to", "up", "vs"];

/// Returns the class of hyphenated words; `None` if they are no name at all.
fn hyphenated_class(text: &str, in_code: bool) -> Option<IdentifierClass> {
    let (mut segments, mut has_letter, mut has_digit, mut has_connective, mut has_gap) =
        (0, false, false, false, false);
    for segment in text.split('-') {
        segments += 1;
        has_gap |= segment.is_empty();
        has_letter |= segment.bytes().any(|byte| byte.is_ascii_alphabetic());
        has_digit |= segment.bytes().any(|byte| byte.is_ascii_digit());
        has_connective |= CONNECTIVES.iter().any(|word| word.eq_ignore_ascii_case(segment));
    }
    if segments < 2 || text.len() < 4 || !has_letter || has_gap {
        return None;
    }
    Some(match has_digit || segments > 2 && !has_connective {
        true => IdentifierClass::Certain,
        false if in_code => IdentifierClass::HyphenatedInCode,
        false => IdentifierClass::HyphenatedInProse,
    })
}

fn visit_word<'t>(word: &'t str, visit: &mut impl FnMut(&'t str, IdentifierClass)) {
    if is_identifier(word) || is_number(word) {
        visit(word, IdentifierClass::Certain);
    } else if word.len() > 3 && word.bytes().all(|byte| byte.is_ascii_uppercase()) {
        visit(word, IdentifierClass::Capitals);
    }
}

/// Returns true for `src/main.rs`, `a/b/c` and `crates/foldline_cli`, but not for `and/or`.
fn is_path(text: &str) -> bool {
    text.len() > 4
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
        && (text.bytes().filter(|&byte| byte == b'/').count() > 1
            || text.bytes().any(|byte| byte == b'.' || byte == b'_' || byte.is_ascii_digit()))
}

fn is_number(word: &str) -> bool {
    word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_identifier(word: &str) -> bool {
    if word.len() < 4 {
        return false;
    }
    let (mut letters, mut digits, mut lower, mut hump, mut bar) = (0, 0, false, false, false);
    for (at, byte) in word.bytes().enumerate() {
        match byte {
            b'0'..=b'9' => digits += 1,
            b'_' => bar = true,
            b'A'..=b'Z' => {
                letters += 1;
                hump |= at > 0;
            }
            _ => {
                letters += 1;
                lower = true;
            }
        }
    }
    letters > 0 && ((bar && letters + digits >= 3) || (hump && lower) || digits > 0)
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_run_byte(byte: u8) -> bool {
    is_word_byte(byte) || matches!(byte, b'.' | b'/' | b'-' | b'~' | b'@' | b'+' | b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the identifiers that depend on nothing but the line.
    fn identifiers_in(line: &str) -> Vec<&str> {
        with_class(line, |class| class == IdentifierClass::Certain)
    }

    fn with_class(line: &str, wanted: impl Fn(IdentifierClass) -> bool) -> Vec<&str> {
        let mut seen = Vec::new();
        for_each_identifier(line, |identifier, class| {
            if wanted(class) {
                seen.push(identifier);
            }
        });
        seen
    }

    #[test]
    fn plain_words_are_not_identifiers() {
        assert!(identifiers_in("Let me look at the file, and/or the other one. I think so - e.g. now!").is_empty());
        assert!(identifiers_in("README WHY 12 a1 x.y").is_empty());
        assert!(identifiers_in("a step-by-step, well-known and up-to-date note: yes -- or no").is_empty());
        assert!(identifiers_in("at 12:30:00 key: value, x:y").is_empty());
    }

    #[test]
    fn path_yields_itself_and_its_file_name() {
        assert_eq!(identifiers_in("(./crates/a/src/lib.rs)"), ["crates/a/src/lib.rs", "lib.rs"]);
        assert_eq!(identifiers_in("/usr/local/bin/"), ["usr/local/bin"]);
        assert_eq!(identifiers_in("\"src/read-file.ts\","), ["src/read-file.ts", "read-file.ts"]);
    }

    #[test]
    fn structured_names_are_identifiers() {
        assert_eq!(identifiers_in("os.path.join(base_dir, getName)"), ["os.path.join", "base_dir", "getName"]);
        assert_eq!(identifiers_in("commit a1b2c3d of HTTPServer"), ["a1b2c3d", "HTTPServer"]);
        assert_eq!(identifiers_in("__init__ and MAX_SIZE"), ["__init__", "MAX_SIZE"]);
    }

    #[test]
    fn numbers_of_three_digits_are_identifiers() {
        assert_eq!(identifiers_in("12 of 1234 in 0.125s, 1.25.3"), ["1234", "0.125s", "125s", "1.25.3"]);
    }

    #[test]
    fn kebab_case_of_code_is_an_identifier() {
        assert_eq!(
            identifiers_in("run --set-metadata=x --all, --no_color"),
            ["--set-metadata", "--all", "--no_color", "no_color"]
        );
        assert_eq!(identifiers_in("class bg-blue-600 in gpt-4o"), ["bg-blue-600", "600", "gpt-4o"]);
        assert_eq!(identifiers_in("use text-muted-foreground"), ["text-muted-foreground"]);
    }

    /// Two words may be English; the conversation decides.
    #[test]
    fn two_hyphenated_words_have_their_own_class() {
        let line = "a well-known class=\"items-center\" of step-by-step";
        assert_eq!(with_class(line, |it| it == IdentifierClass::HyphenatedInCode), ["items-center"]);
        assert_eq!(with_class(line, |it| it == IdentifierClass::HyphenatedInProse), ["well-known", "step-by-step"]);
        assert_eq!(with_class("IGNORE the MTIME", |it| it == IdentifierClass::Capitals), ["IGNORE", "MTIME"]);
    }

    #[test]
    fn qualified_names_and_urls_are_whole() {
        assert_eq!(identifiers_in("std::fmt::Debug for x::y"), ["std::fmt::Debug"]);
        assert_eq!(identifiers_in("import node:fs, build:css"), ["node:fs", "build:css"]);
        assert_eq!(identifiers_in("on localhost:3000."), ["localhost:3000", "3000"]);
        let url = "see (https://docs.rs/serde_json/1.0?x=value_of#top), ok";
        let expected = [
            "https://docs.rs/serde_json/1.0?x=value_of#top",
            "docs.rs/serde_json/1.0",
            "docs.rs",
            "serde_json",
            "value_of",
        ];
        assert_eq!(identifiers_in(url), expected);
    }

    #[test]
    fn non_ascii_text_does_not_break_the_scan() {
        assert_eq!(identifiers_in("größe_x → snake_case ñ"), ["snake_case"]);
        assert_eq!(
            identifiers_in("https://example.org/größe_x"),
            ["https://example.org/gr", "example.org/gr", "example.org"]
        );
    }
}
