//! Identifiers: the exact references in a text that are evidence of where it came from.
//!
//! An identifier is a path, a dotted name, a name with structure (`snake_case`, `camelCase`,
//! letters with digits) or a number of three or more digits. Plain words are not evidence: they appear
//! everywhere. Nothing here depends on a conversation.

/// Calls `visit` with every identifier of a line, in order, including repeats.
///
/// A path is visited whole, then its parts; so a file's name also counts without
/// its folder.
///
/// ```
/// let mut seen = Vec::new();
/// foldline_replay::for_each_identifier("see src/fold_line.rs:120, it was readFile (or so)", |it| seen.push(it.to_owned()));
/// assert_eq!(seen, ["src/fold_line.rs", "fold_line.rs", "fold_line", "120", "readFile"]);
/// ```
pub fn for_each_identifier<'t>(line: &'t str, mut visit: impl FnMut(&'t str)) {
    let bytes = line.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !is_run_byte(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && is_run_byte(bytes[at]) {
            at += 1;
        }
        // Runs are ASCII, so their ends are character boundaries.
        visit_run(&line[start..at], &mut visit);
    }
}

/// Visits the identifiers of a run: a sequence of characters that may be part of a path.
fn visit_run<'t>(text: &'t str, visit: &mut impl FnMut(&'t str)) {
    let text = text.trim_matches(|c: char| !is_word_byte(c as u8));
    if text.len() < 3 {
        return;
    }
    if text.contains('/') {
        if is_path(text) {
            visit(text);
        }
        for segment in text.split(['/', '~', '@', '+']) {
            visit_name(segment, visit);
        }
    } else if text.contains(['~', '@', '+']) {
        for segment in text.split(['~', '@', '+']) {
            visit_name(segment, visit);
        }
    } else {
        visit_name(text, visit);
    }
}

/// Visits the identifiers of a path segment, or of a dotted name.
fn visit_name<'t>(text: &'t str, visit: &mut impl FnMut(&'t str)) {
    let text = text.trim_matches(|c: char| !is_word_byte(c as u8));
    if text.len() < 3 {
        return;
    }
    if text.contains('.') && text.len() > 3 {
        let letters = text.bytes().any(|byte| byte.is_ascii_alphabetic());
        let digits = text.bytes().filter(u8::is_ascii_digit).count();
        if letters || digits >= 3 {
            visit(text);
        }
    }
    for word in text.split(['.', '-']) {
        if is_identifier(word) || is_number(word) {
            visit(word);
        }
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
    is_word_byte(byte) || matches!(byte, b'.' | b'/' | b'-' | b'~' | b'@' | b'+')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identifiers_in(line: &str) -> Vec<&str> {
        let mut seen = Vec::new();
        for_each_identifier(line, |identifier| seen.push(identifier));
        seen
    }

    #[test]
    fn plain_words_are_not_identifiers() {
        assert!(identifiers_in("Let me look at the file, and/or the other one. I think so - e.g. now!").is_empty());
        assert!(identifiers_in("README WHY 12 a1 x.y").is_empty());
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
    fn non_ascii_text_does_not_break_the_scan() {
        assert_eq!(identifiers_in("größe_x → snake_case ñ"), ["snake_case"]);
    }
}
