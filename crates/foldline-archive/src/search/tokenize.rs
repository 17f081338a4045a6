//! Tokenization of text, for indexing and for queries.
//!
//! An identifier is found by its whole and by its pieces, in any case style: `readConfigFile`, `read_config_file` and
//! `ReadConfigFile` are all `readconfigfile`, `read`, `config` and `file`. A path is the words between its slashes.
//! Chinese, Japanese and Korean text, which has no spaces, is split into character bigrams.
//!
//! Queries are tokenized the same way, so user input is never read as query syntax.

/// Longer words are data (base64, minified code) that users do not search for.
const MAX_TERM_BYTES: usize = 64;

/// Shorter numbers are line numbers and counts: they appear in every text and carry no information.
const MIN_NUMBER_DIGITS: usize = 3;

/// A word and its pieces, all in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SearchWord {
    text: String,
    /// End offsets of its pieces; empty if it has no useful pieces.
    piece_ends: Vec<usize>,
}

impl SearchWord {
    /// Returns the whole word, if it is short enough to be looked up.
    pub(crate) fn whole(&self) -> Option<&str> {
        Some(self.text.as_str()).filter(|whole| whole.len() <= MAX_TERM_BYTES)
    }

    /// Returns its pieces, if there is more than one.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.piece_ends.iter().copied());
        let pieces = starts.zip(&self.piece_ends).map(|(start, &end)| &self.text[start..end]);
        pieces.filter(|piece| (2..=MAX_TERM_BYTES).contains(&piece.len()))
    }

    /// Returns all terms it is found by.
    pub(crate) fn terms(&self) -> impl Iterator<Item = &str> {
        self.whole().into_iter().chain(self.pieces())
    }
}

/// Calls `found` for each word of the text, in order. The word is reused between calls.
pub(crate) fn for_each_word(text: &str, mut found: impl FnMut(&SearchWord)) {
    let mut word = SearchWord::default();
    for run in text.split(|c: char| !c.is_alphanumeric() && c != '_') {
        let mut rest = run;
        while let Some(first) = rest.chars().next() {
            let is_dense = is_unspaced_script(first);
            let end = rest
                .char_indices()
                .find(|&(_, c)| self::is_unspaced_script(c) != is_dense)
                .map_or(rest.len(), |(at, _)| at);
            let (head, tail) = rest.split_at(end);
            if is_dense {
                for_each_bigram(head, &mut word, &mut found);
            } else {
                split_identifier(head, &mut word);
                if !word.text.is_empty() {
                    found(&word);
                }
            }
            rest = tail;
        }
    }
}

fn for_each_bigram(run: &str, word: &mut SearchWord, found: &mut impl FnMut(&SearchWord)) {
    let ends: Vec<usize> = run.char_indices().map(|(at, _)| at).chain([run.len()]).collect();
    // A single character is one word.
    let reach = if ends.len() > 2 { 2 } else { 1 };
    for ends in ends.windows(reach + 1) {
        word.piece_ends.clear();
        word.text.clear();
        word.text.push_str(&run[ends[0]..ends[reach]]);
        found(word);
    }
}

/// Splits an identifier at case changes, separators and digits.
fn split_identifier(run: &str, word: &mut SearchWord) {
    let SearchWord { text: letters, piece_ends: ends } = word;
    letters.clear();
    ends.clear();
    // Hashes and ids alternate between letters and digits; their pieces carry no information.
    let mut changes = 0;
    let mut before = CharClass::Separator;
    let mut chars = run.chars().peekable();
    while let Some(c) = chars.next() {
        let kind = CharClass::for_char(c);
        let begins = match (before, kind) {
            (_, CharClass::Separator) | (CharClass::Lower, CharClass::Upper) => true,
            (CharClass::Upper, CharClass::Upper) => {
                chars.peek().is_some_and(|&next| CharClass::for_char(next) == CharClass::Lower)
            }
            (CharClass::Digit, CharClass::Lower | CharClass::Upper)
            | (CharClass::Lower | CharClass::Upper, CharClass::Digit) => {
                changes += 1;
                true
            }
            _ => false,
        };
        if begins && letters.len() > ends.last().copied().unwrap_or(0) {
            ends.push(letters.len());
        }
        match kind {
            CharClass::Separator => {}
            _ if c.is_ascii() => letters.push(c.to_ascii_lowercase()),
            _ => letters.extend(c.to_lowercase()),
        }
        before = kind;
    }
    let is_number = letters.bytes().all(|byte| byte.is_ascii_digit());
    if letters.len() < 2 || is_number && letters.len() < MIN_NUMBER_DIGITS {
        letters.clear();
    }
    if ends.last() != Some(&letters.len()) {
        ends.push(letters.len());
    }
    if ends.len() == 1 || changes > 3 {
        ends.clear();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Lower,
    Upper,
    Digit,
    Separator,
}

impl CharClass {
    fn for_char(c: char) -> Self {
        match c {
            '_' => CharClass::Separator,
            'a'..='z' => CharClass::Lower,
            'A'..='Z' => CharClass::Upper,
            c if c.is_numeric() => CharClass::Digit,
            c if c.is_uppercase() => CharClass::Upper,
            _ => CharClass::Lower,
        }
    }
}

/// Returns true for scripts that are written without spaces.
fn is_unspaced_script(c: char) -> bool {
    matches!(u32::from(c), 0x3040..=0x30ff | 0x3400..=0x9fff | 0xac00..=0xd7af | 0xf900..=0xfaff | 0x2_0000..=0x2_fa1f)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut all = Vec::new();
        for_each_word(text, |word| {
            let pieces: Vec<_> = word.pieces().collect();
            let whole = word.whole().unwrap_or_default();
            all.push(if pieces.is_empty() { whole.to_owned() } else { format!("{whole}={}", pieces.join("+")) });
        });
        all
    }

    #[test]
    fn identifiers_split_in_every_case_style() {
        for written in
            ["readConfigFile", "read_config_file", "ReadConfigFile", "READ_CONFIG_FILE", "__read_config_file__"]
        {
            assert_eq!(words(written), ["readconfigfile=read+config+file"], "{written}");
        }
        assert_eq!(words("HTTPServer parseURL"), ["httpserver=http+server", "parseurl=parse+url"]);
        assert_eq!(words("sha256 utf8"), ["sha256=sha+256", "utf8=utf"]);
    }

    #[test]
    fn paths_and_errors_split_into_words() {
        assert_eq!(words("/src/fold-line/main.rs:12"), ["src", "fold", "line", "main", "rs"]);
        assert_eq!(words("error[E0308]: it's 404"), ["error", "e0308=0308", "it", "404"]);
        assert_eq!(words("Größe ÉCOLE"), ["größe", "école"]);
    }

    #[test]
    fn ids_stay_whole_and_long_data_is_skipped() {
        assert_eq!(words("9f86d081884c7d65"), ["9f86d081884c7d65"]);
        assert_eq!(words(&"x".repeat(65)), [""]);
        assert_eq!(words("a 1 22 _ __ -"), [""; 0]);
    }

    #[test]
    fn cjk_text_is_split_into_bigrams() {
        assert_eq!(words("漢字入力"), ["漢字", "字入", "入力"]);
        assert_eq!(words("漢"), ["漢"]);
        assert_eq!(words("vim漢字x2"), ["vim", "漢字", "x2"]);
    }

    proptest! {
        /// Terms contain only letters and digits, whatever the text: nothing in them can be syntax.
        #[test]
        fn terms_are_alphanumeric(text in any::<String>()) {
            for_each_word(&text, |word| {
                for term in word.terms() {
                    assert!((1..=MAX_TERM_BYTES).contains(&term.len()));
                    assert!(term.chars().all(|c| c.is_alphanumeric() || !c.is_ascii()), "{term:?}");
                }
            });
        }
    }
}
