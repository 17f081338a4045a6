//! A cheap estimate of the tokens of any text, for models whose vocabulary is unknown.
//!
//! A finite automaton over the bytes. Its state is the current run (a word, a number, spaces, punctuation) and its
//! length, and every byte adds a weight; so more text is never fewer tokens, and the cost is one table lookup per
//! byte. The weights are fitted from above to OpenAI's vocabularies on recorded sessions and generated data
//! (docs/decisions/0002): dense data such as base64, hex and JSON is not underestimated, and non-Latin scripts are
//! counted per character.

use crate::tokens::{CountExactness, TokenCounter, Tokens};

/// A counter for any text that tends to overestimate.
///
/// ```
/// use foldline::tokens::{TokenCounter, TokenEstimator};
///
/// let text = "fold old parts into short markers";
/// assert!(TokenEstimator.count(text) >= 6);
/// assert!(TokenEstimator.count("折叠旧的部分") >= 6);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenEstimator;

impl TokenEstimator {
    /// Returns the weight of a text in hundredths of a token.
    pub(crate) fn hundredths(text: &str) -> Tokens {
        EstimatorState::START.scan(text)
    }

    /// Returns the weight of a text after a line break. The number of breaks before it does not matter.
    pub(crate) fn hundredths_after_newline(text: &str) -> Tokens {
        EstimatorState::AFTER_NEWLINE.scan(text)
    }

    /// Returns the weights of the lines of a text, each with its line break.
    ///
    /// Each step depends on the previous one, which leaves the processor idle. The state after a line break is always
    /// the same, so both halves of the text are scanned in parallel.
    pub(crate) fn hundredths_by_line(text: &str) -> Vec<Tokens> {
        let bytes = text.as_bytes();
        let middle = memchr::memrchr(b'\n', &bytes[..bytes.len() / 2]).map_or(0, |at| at + 1);
        let (head, tail) = bytes.split_at(middle);
        let breaks = |bytes: &[u8]| memchr::memchr_iter(b'\n', bytes).count();
        let (head_breaks, tail_breaks) = (breaks(head), breaks(tail));
        let mut weights = vec![0; head_breaks + tail_breaks + 1];
        let (head_weights, tail_weights) = weights.split_at_mut(head_breaks);
        let mut first = LineScan { scan: EstimatorState::START, weights: head_weights, finished_lines: 0 };
        let walk = if head.is_empty() { EstimatorState::START } else { EstimatorState::AFTER_NEWLINE };
        let mut second = LineScan { scan: walk, weights: tail_weights, finished_lines: 0 };
        let both = head.len().min(tail.len());
        for (&one, &other) in head.iter().zip(tail) {
            first.scan.step(one);
            second.scan.step(other);
            first.end_if_newline(one);
            second.end_if_newline(other);
        }
        head[both..].iter().for_each(|&byte| first.step(byte));
        tail[both..].iter().for_each(|&byte| second.step(byte));
        second.end_line();
        for lines in [first, second] {
            lines.into_line_weights();
        }
        // The text after the last line break is a line only if it is not empty.
        weights.pop_if(|_| text.ends_with('\n'));
        weights
    }
}

/// The state of a scan over a text.
struct EstimatorState {
    state: usize,
    last: u8,
    /// Weight of the scanned bytes, in hundredths of a token.
    weight: Tokens,
}

impl EstimatorState {
    const START: Self = Self { state: 0, last: 0, weight: 0 };
    const AFTER_NEWLINE: Self = Self { state: NEWLINE * MAX_RUN_LENGTH, last: b'\n', weight: 0 };

    /// Returns the weight of a text.
    fn scan(mut self, text: &str) -> Tokens {
        text.bytes().for_each(|byte| self.step(byte));
        self.weight
    }

    #[inline]
    fn step(&mut self, byte: u8) {
        let is_repeated = usize::from(byte == self.last);
        let column = BYTE_COLUMNS[is_repeated][usize::from(byte)];
        let step = TRANSITIONS[self.state % STATE_COUNT][usize::from(column) % COLUMN_COUNT];
        self.weight += Tokens::from(step.weight);
        self.state = usize::from(step.next_state);
        self.last = byte;
    }
}

/// A scan over lines.
struct LineScan<'w> {
    scan: EstimatorState,
    /// Weight of the text up to the end of each finished line.
    weights: &'w mut [Tokens],
    finished_lines: usize,
}

impl LineScan<'_> {
    #[inline]
    fn step(&mut self, byte: u8) {
        self.scan.step(byte);
        self.end_if_newline(byte);
    }

    #[inline]
    fn end_if_newline(&mut self, byte: u8) {
        if byte == b'\n' {
            self.end_line();
        }
    }

    #[inline]
    fn end_line(&mut self) {
        self.weights[self.finished_lines] = self.scan.weight;
        self.finished_lines += 1;
    }

    /// Converts the cumulative weights to weights per line.
    fn into_line_weights(self) {
        for at in (1..self.weights.len()).rev() {
            self.weights[at] -= self.weights[at - 1];
        }
    }
}

impl TokenCounter for TokenEstimator {
    fn count(&self, text: &str) -> Tokens {
        Self::hundredths(text).div_ceil(100)
    }

    fn exactness(&self) -> CountExactness {
        CountExactness::Estimated
    }

    fn is_monotone(&self) -> bool {
        true
    }
}

/// The kind of a byte. Non-ASCII characters are distinguished by their first byte, which identifies the script well
/// enough.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum ByteKind {
    Lower,
    Upper,
    Digit,
    Space,
    Newline,
    Tab,
    Punctuation,
    Control,
    /// Columns 8 to 15 are the first eight kinds when the same byte is repeated.
    Continuation = 16,
    Latin,
    LatinExtended,
    Cyrillic,
    Hebrew,
    Arabic,
    Indic,
    LatinAdditional,
    Symbol,
    Kana,
    Han,
    Hangul,
    Wide,
    Astral,
}

const COLUMN_COUNT: usize = 32;
/// Maximum tracked length of a run; a state is a run and its length.
const MAX_RUN_LENGTH: usize = 16;
const STATE_COUNT: usize = 8 * MAX_RUN_LENGTH;

/// Column of every byte: for a new byte, and for a repeated byte. Digits have one column for both, since zeros are
/// not cheaper than other digits.
static BYTE_COLUMNS: [[u8; 256]; 2] = {
    let mut columns = [[0; 256]; 2];
    let mut byte = 0;
    while byte < 256 {
        let kind = byte_kind(byte as u8) as u8;
        columns[0][byte] = kind;
        columns[1][byte] = if kind < 8 && kind != ByteKind::Digit as u8 { kind + 8 } else { kind };
        byte += 1;
    }
    columns
};

#[derive(Clone, Copy)]
struct ScanTransition {
    /// Weight of the byte, in hundredths of a token.
    weight: u16,
    /// State after the byte.
    next_state: u16,
}

static TRANSITIONS: [[ScanTransition; COLUMN_COUNT]; STATE_COUNT] = {
    let mut steps = [[ScanTransition { weight: 0, next_state: 0 }; COLUMN_COUNT]; STATE_COUNT];
    let mut at = 0;
    while at < STATE_COUNT * COLUMN_COUNT {
        let (state, column) = (at / COLUMN_COUNT, at % COLUMN_COUNT);
        let weight = match column {
            0..8 => transition_weight(state / MAX_RUN_LENGTH, state % MAX_RUN_LENGTH + 1, column),
            8..10 if state % MAX_RUN_LENGTH + 1 < MAX_RUN_LENGTH => REPEATED_LETTER_WEIGHT,
            8..10 => LONG_RUN_LETTER_WEIGHT,
            10..16 => REPEATED_SIGN_WEIGHT,
            _ => NON_ASCII_WEIGHTS[column - 16],
        };
        let kind = if column < 16 { column % 8 } else { NON_ASCII };
        steps[state][column] = ScanTransition { weight, next_state: next_state(state, kind) as u16 };
        at += 1;
    }
    steps
};

const fn byte_kind(byte: u8) -> ByteKind {
    match byte {
        b'a'..=b'z' => ByteKind::Lower,
        b'A'..=b'Z' => ByteKind::Upper,
        b'0'..=b'9' => ByteKind::Digit,
        b' ' => ByteKind::Space,
        b'\n' | b'\r' => ByteKind::Newline,
        b'\t' => ByteKind::Tab,
        0x00..=0x1F | 0x7F => ByteKind::Control,
        0x21..=0x7E => ByteKind::Punctuation,
        0x80..=0xBF => ByteKind::Continuation,
        0xC0..=0xC3 => ByteKind::Latin,
        0xC4..=0xCF => ByteKind::LatinExtended,
        0xD0..=0xD3 => ByteKind::Cyrillic,
        0xD4..=0xD7 => ByteKind::Hebrew,
        0xD8..=0xDF => ByteKind::Arabic,
        0xE0 => ByteKind::Indic,
        0xE1 => ByteKind::LatinAdditional,
        0xE2 => ByteKind::Symbol,
        0xE3 => ByteKind::Kana,
        0xE4..=0xE9 => ByteKind::Han,
        0xEA..=0xED => ByteKind::Hangul,
        0xEE..=0xEF => ByteKind::Wide,
        0xF0..=0xFF => ByteKind::Astral,
    }
}

// Runs; the first seven have the numbers of their kinds.
const LOWER: usize = ByteKind::Lower as usize;
const UPPER: usize = ByteKind::Upper as usize;
const DIGIT: usize = ByteKind::Digit as usize;
const SPACE: usize = ByteKind::Space as usize;
const NEWLINE: usize = ByteKind::Newline as usize;
const TAB: usize = ByteKind::Tab as usize;
const PUNCTUATION: usize = ByteKind::Punctuation as usize;
/// A control character, a non-ASCII character, or the start of the text.
const NON_ASCII: usize = 7;

/// Returns the state after a byte. A word continues after a capital; numbers restart after three digits, as
/// vocabularies split them.
const fn next_state(state: usize, kind: usize) -> usize {
    let (run, length) = (state / MAX_RUN_LENGTH, state % MAX_RUN_LENGTH + 1);
    let length = match (run, kind) {
        (UPPER, LOWER) => 2,
        (DIGIT, DIGIT) => length % 3 + 1,
        _ if run == kind && length < MAX_RUN_LENGTH => length + 1,
        _ if run == kind => length,
        _ => 1,
    };
    kind * MAX_RUN_LENGTH + length - 1
}

/// Returns the weight of a byte that continues or follows a run of this length, in hundredths of a token.
///
/// A space carries the token and the word after it is free, as vocabularies join them; long words cost more per
/// letter, and very long ones (encoded data) about one token per two letters.
const fn transition_weight(run: usize, length: usize, kind: usize) -> u16 {
    match (kind, run, length) {
        (LOWER, LOWER, 1) => 12,
        (LOWER, LOWER, 2..=4) => 8,
        (LOWER, LOWER, 5..=9) => 10,
        (LOWER, LOWER, 10..MAX_RUN_LENGTH) => 32,
        (LOWER, LOWER, _) => 58,
        (LOWER, UPPER, 1) => 0,
        (LOWER, UPPER, _) => 120,
        (UPPER, UPPER, 1..=3) => 34,
        (UPPER, UPPER, _) => 60,
        (UPPER, LOWER, 1..=2) => 160,
        (UPPER, LOWER, _) => 120,
        (LOWER | UPPER, SPACE, 1) => 0,
        (LOWER | UPPER, SPACE, _) => 130,
        (LOWER | UPPER, NEWLINE | TAB, _) => 80,
        (UPPER, PUNCTUATION, 1) => 100,
        (LOWER | UPPER, PUNCTUATION, _) => 110,
        (LOWER, DIGIT, _) => 140,
        (UPPER, DIGIT, _) => 110,
        (LOWER | UPPER, _, _) => 120,

        (DIGIT, DIGIT, 1..=2) => 0,
        (DIGIT, DIGIT, _) => 100,
        (DIGIT, LOWER | UPPER, _) => 140,
        (DIGIT, SPACE | NEWLINE | TAB, _) => 136,
        (DIGIT, _, _) => 142,

        (SPACE, LOWER | UPPER, _) => 100,
        (SPACE, NEWLINE, _) => 60,
        (SPACE, SPACE, _) => REPEATED_SIGN_WEIGHT,
        (SPACE, _, _) => 75,
        (NEWLINE, NEWLINE, _) => REPEATED_SIGN_WEIGHT,
        (NEWLINE, PUNCTUATION, _) => 100,
        (NEWLINE, _, _) => 125,
        (TAB, TAB | NEWLINE, _) => 60,
        (TAB, _, _) => 120,

        (PUNCTUATION, LOWER | UPPER, _) => 50,
        (PUNCTUATION, DIGIT, _) => 55,
        (PUNCTUATION, SPACE, _) => 15,
        (PUNCTUATION, NEWLINE | TAB, _) => 70,
        (PUNCTUATION, PUNCTUATION, 1) => 30,
        (PUNCTUATION, PUNCTUATION, 2) => 20,
        (PUNCTUATION, PUNCTUATION, _) => 70,
        (PUNCTUATION, _, _) => 50,

        (_, _, _) => 100,
    }
}

/// Weight of a repeated letter in a word.
const REPEATED_LETTER_WEIGHT: u16 = 14;
/// Weight of a repeated letter in a run too long to be a word.
const LONG_RUN_LETTER_WEIGHT: u16 = 54;
/// Weight of a repeated space or punctuation: indentation, rules of dashes, closing brackets.
const REPEATED_SIGN_WEIGHT: u16 = 10;

/// Weight of a non-ASCII character, by [`ByteKind`] from `Continuation`: its first byte carries all of it.
const NON_ASCII_WEIGHTS: [u16; 16] = [0, 110, 110, 60, 125, 95, 130, 125, 180, 110, 155, 110, 130, 290, 290, 290];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Vocabulary;
    use proptest::prelude::*;

    /// Returns the larger count of both OpenAI vocabularies; estimates must not be below it.
    fn exact(text: &str) -> Tokens {
        Vocabulary::o200k().count(text).max(Vocabulary::cl100k().count(text))
    }

    fn assert_not_underestimated(text: &str) -> Result<(), TestCaseError> {
        let (guess, exact) = (TokenEstimator.count(text), exact(text));
        prop_assert!(guess as f64 >= exact as f64 * 0.95, "{guess} for {exact} of {text:?}");
        Ok(())
    }

    const ENGLISH: &str = "An agent sends the whole conversation again at every step, and so the oldest results of its \
        tools are paid for many times. When the window is nearly full, something has to go; what goes should be what \
        the model needs least, and it should be possible to bring it back without a loss. The markers that stay \
        behind say how much is gone and by which name it can be asked for.";

    const CODE: &str = r#"
impl Reader {
    /// Reads the next record, or nothing at the end.
    pub fn next(&mut self) -> io::Result<Option<Record>> {
        let mut header = [0_u8; HEADER_LEN];
        if self.input.read(&mut header)? == 0 {
            return Ok(None);
        }
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        self.buffer.resize(length, 0);
        self.input.read_exact(&mut self.buffer)?;
        for (index, chunk) in self.buffer.chunks(16).enumerate() {
            debug!("chunk {index}: {chunk:02x?}");
        }
        Ok(Some(Record { id: self.records, body: self.buffer.clone() }))
    }
}
"#;

    #[test]
    fn prose_and_code_are_overestimated_by_at_most_half() {
        for text in [ENGLISH, CODE] {
            let (guess, exact) = (TokenEstimator.count(text), Vocabulary::o200k().count(text));
            assert!(guess >= exact && guess * 2 <= exact * 3, "{guess} for {exact}");
        }
    }

    #[test]
    fn languages_are_not_underestimated() {
        for text in [
            "把对话中较早的部分折叠成简短的标记，需要的时候可以逐字节地还原。缓存命中的价格远低于重新写入的价格。",
            "系統會自動將較舊的段落摺疊成簡短的標記，並且保證可以完整還原。請確認網路連線正常，然後重新啟動服務。",
            "会話の古い部分を短いマーカーに折りたたみ、必要なときに元のバイト列をそのまま復元します。",
            "대화의 오래된 부분을 짧은 표시로 접고, 필요할 때 원래 바이트를 그대로 복원합니다.",
            "Мы сворачиваем старые части разговора в короткие метки, которые можно развернуть обратно.",
            "نقوم بطي الأجزاء القديمة من المحادثة إلى علامات قصيرة يمكن فتحها مرة أخرى.",
            "हम बातचीत के पुराने हिस्सों को छोटे चिह्नों में मोड़ते हैं, जिन्हें बाद में खोला जा सकता है।",
            "Διπλώνουμε τα παλιά μέρη της συνομιλίας σε σύντομους δείκτες.",
            "Wir falten die alten Teile des Gesprächs zu kurzen Markierungen zusammen, die sich später Byte für Byte \
             wieder entfalten lassen. Das Fenster des Modells ist begrenzt, deshalb muss die Anfrage in das Budget \
             passen. Änderungen an früheren Überschriften würden den Zwischenspeicher ungültig machen.",
        ] {
            assert_not_underestimated(text).unwrap();
        }
    }

    fn bytes(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), length)
    }

    fn base64(bytes: &[u8]) -> String {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(bytes)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Generates a row as tools print them: short keys, numbers, flags, ids.
    fn json_row() -> impl Strategy<Value = String> {
        ("[a-z]{1,8}", any::<u32>(), -1.0e3..1.0e3_f64, any::<bool>(), bytes(4..5)).prop_map(
            |(key, id, x, flag, hash)| {
                format!(
                    r#"{{"id":{id},"{key}":{x:.3},"ok":{flag},"hash":"{}","tags":["{key}",null,{}]}}"#,
                    hex(&hash),
                    id % 97
                )
            },
        )
    }

    proptest! {
        #[test]
        fn base64_is_not_underestimated(data in bytes(300..600)) {
            assert_not_underestimated(&base64(&data))?;
        }

        #[test]
        fn hex_is_not_underestimated(data in bytes(200..400), upper: bool) {
            let text = hex(&data);
            assert_not_underestimated(&if upper { text.to_uppercase() } else { text })?;
        }

        #[test]
        fn digits_are_not_underestimated(text in "[0-9]{300,600}", numbers in prop::collection::vec(any::<u32>(), 50..100)) {
            assert_not_underestimated(&text)?;
            assert_not_underestimated(&numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))?;
        }

        #[test]
        fn dense_json_is_not_underestimated(rows in prop::collection::vec(json_row(), 10..30)) {
            assert_not_underestimated(&format!("[{}]", rows.join(",")))?;
        }

        #[test]
        fn mixed_text_is_not_underestimated(
            pieces in prop::collection::vec(
                prop_oneof![
                    Just(ENGLISH.to_owned()),
                    Just(CODE.to_owned()),
                    bytes(60..90).prop_map(|data| base64(&data)),
                    bytes(40..60).prop_map(|data| hex(&data)),
                    json_row(),
                    "[0-9]{30,90}",
                    Just("折叠旧的部分，并且可以还原。".to_owned()),
                ],
                5..15,
            )
        ) {
            assert_not_underestimated(&pieces.join("\n"))?;
        }

        /// More text is never fewer tokens, wherever the text is cut.
        #[test]
        fn monotone_under_append(text in any::<String>(), more in any::<String>()) {
            let whole = format!("{text}{more}");
            let mut before = 0;
            for end in (0..=whole.len()).filter(|&end| whole.is_char_boundary(end)) {
                let now = TokenEstimator.count(&whole[..end]);
                prop_assert!(now >= before, "{now} after {before} at {end} of {whole:?}");
                before = now;
            }
        }

        #[test]
        fn monotone_on_ascii_text(text in "[ -~\n\t]{0,300}") {
            let counts: Vec<Tokens> = (0..=text.len()).map(|end| TokenEstimator.count(&text[..end])).collect();
            prop_assert!(counts.is_sorted());
        }
    }

    /// The estimate once shrank from 357 to 313 when a space was added.
    #[test]
    fn trailing_space_does_not_shrink_the_count() {
        let text = "x".repeat(1_250);
        assert!(TokenEstimator.count(&format!("{text} ")) >= TokenEstimator.count(&text));
    }

    #[test]
    fn long_repetition_is_not_underestimated() {
        for unit in ["a", "Z", " ", "\n", "=", "0", "ab"] {
            let text = unit.repeat(5_000);
            assert!(TokenEstimator.count(&text) >= exact(&text), "{unit:?}");
        }
    }
}
