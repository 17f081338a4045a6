//! The count of a text that is assembled from lines with known counts.

use crate::tokens::Tokens;
use crate::tokens::line_counts::LineCounter;
use crate::tokens::text_meter::TextMeter;

/// Adds up the count of a text while it is assembled from lines.
pub(crate) struct IncrementalCount<'m> {
    meter: &'m TextMeter,
    counter: Option<LineCounter>,
    units: Tokens,
    /// Start of the text that is not counted yet.
    counted_until: usize,
    /// Start of the last line, and its count if it can be added.
    last_line: (usize, Option<u16>),
}

impl<'m> IncrementalCount<'m> {
    pub(crate) fn new(meter: &'m TextMeter) -> Self {
        Self { meter, counter: meter.line_counter(), units: 0, counted_until: 0, last_line: (0, None) }
    }

    /// Records the next line, which follows a line break, with its count if it is known.
    pub(crate) fn add_line(&mut self, before: &str, line: &str, count: Option<u16>) {
        let Some(counter) = self.counter else { return };
        let starts_new = counter.starts_new_token(line);
        if let (true, (start, Some(count))) = (starts_new, self.last_line) {
            self.add_text(counter, &before[..start]);
            self.units += Tokens::from(count);
            self.counted_until = before.len();
        }
        self.last_line = (before.len(), count.filter(|_| starts_new));
    }

    fn add_text(&mut self, counter: LineCounter, text: &str) {
        if self.counted_until < text.len() {
            let rest = &text[self.counted_until..];
            self.units +=
                if self.counted_until == 0 { counter.units_at_start(rest) } else { counter.units_after_newline(rest) };
        }
    }

    /// Returns the count of the whole text.
    pub(crate) fn finish(mut self, text: &str) -> Tokens {
        match self.counter {
            Some(counter) if self.counted_until > 0 && counter.is_additive(text) => {
                self.add_text(counter, text);
                self.meter.scaled(counter.to_tokens(self.units))
            }
            _ => self.meter.text(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Meter, ModelTable};

    fn meters() -> Vec<Meter> {
        ["gpt-4o", "gpt-4", "qwen3-32b", "mistral-large", "claude-opus-4-6", "claude-opus-4-7"]
            .map(|model| Meter::for_model(ModelTable::builtin(), Some(model)))
            .into()
    }

    /// Lines as tools print them, and lines that are joined with the previous one: blank, after a slash, with unusual
    /// spaces.
    fn lines() -> impl Strategy<Value = Vec<String>> {
        let line = prop_oneof![
            "[ \t]{0,6}[a-zA-Z_(){};.'/ 0-9]{0,24}",
            "[ \t]{0,3}",
            "/{1,2}[a-z ]{0,8}",
            "[ \t\r\u{b}\u{c}\u{85}\u{a0}\u{2028}\u{3000}]{0,4}[a-z;]{0,4}\r?",
            "\\PC{0,12}",
            "[折叠旧的部分，。あいう]{0,8}",
        ];
        prop::collection::vec(line, 0..24)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// The count by lines equals the count of the text, for any choice of its lines.
        #[test]
        fn line_counts_add_up(lines in lines(), ends: bool, kept in prop::collection::vec(any::<bool>(), 24), gaps: bool) {
            let text = lines.join("\n") + if ends { "\n" } else { "" };
            for meter in meters() {
                let (tokens, counts) = meter.texts().text_and_line_counts(&text, xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
                prop_assert_eq!(tokens, Meter::for_row(meter.row().clone()).text(&text));
                let Some(counts) = counts else { continue };
                let mut tally = IncrementalCount::new(meter.texts());
                let mut out = "[folded: some of these lines]".to_owned();
                let mut left_out = 0;
                for (number, (line, kept)) in lines.iter().zip(&kept).enumerate() {
                    if !kept {
                        left_out += 1;
                        continue;
                    }
                    if left_out > 0 && gaps {
                        let gap = format!("[+{left_out}]");
                        out.push('\n');
                        tally.add_line(&out, &gap, None);
                        out.push_str(&gap);
                    }
                    left_out = 0;
                    out.push('\n');
                    tally.add_line(&out, line, counts.get(number));
                    out.push_str(line);
                }
                prop_assert_eq!(tally.finish(&out), meter.text(&out), "{:?}", out);
            }
        }
    }

    /// Counts are not added up where a run is so long that it is counted in chunks.
    #[test]
    fn text_with_a_long_run_is_not_split() {
        let meter = Meter::for_model(ModelTable::builtin(), Some("gpt-4o"));
        let text = format!("before\n{}x\nafter\n", " ".repeat(9_000));
        let (tokens, counts) = meter.texts().text_and_line_counts(&text, xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
        assert_eq!(tokens, Meter::for_row(meter.row().clone()).text(&text));
        assert!(counts.is_none());
    }
}
