//! Generated conversations for property tests, in every format.
//!
//! A [`SampleRequest`] is a request body together with the conversation that parsing it must give. It breaks
//! no law. Bodies deliberately use unusual JSON: whitespace anywhere, unnecessary escapes, unknown
//! fields, fields in another order, numbers outside the range of floats. Shrinking leads to a short,
//! plain body.
//!
//! Nothing here is part of the product: it is compiled only for tests and with the feature `testing`.

mod anthropic;
mod converse;
mod gemini;
mod json;
mod ollama;
mod openai_chat;
mod openai_responses;
mod sample;
mod shape;

pub use sample::{SampleRequest, sample_text};
pub use shape::shape;

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::select;

use crate::testing::sample::{SampleDialect, SampleTurn, SampleWriter, settings, turn};
use crate::wire::Format;
pub use crate::wire::event_stream::event_message;

static SAMPLE_DIALECTS: [&SampleDialect; 6] = [
    &openai_chat::SAMPLES,
    &openai_responses::SAMPLES,
    &anthropic::SAMPLES,
    &gemini::SAMPLES,
    &ollama::SAMPLES,
    &converse::SAMPLES,
];

/// Generates a sample of any format with up to a dozen turns.
pub fn samples() -> impl Strategy<Value = SampleRequest> {
    select(Format::all().collect::<Vec<_>>()).prop_flat_map(|format| sample(format, 0..12))
}

/// Generates a sample of one format: a user message, then the given number of turns.
pub fn sample(format: Format, turns: std::ops::Range<usize>) -> impl Strategy<Value = SampleRequest> {
    (settings(), vec(turn(), turns), any::<u64>()).prop_map(move |(setting, mut turns, seed)| {
        // A request begins with the task and ends with a message that needs a response.
        turns.insert(0, SampleTurn::User { texts: vec![setting.task.clone()], image: None });
        if matches!(turns.last(), Some(SampleTurn::Round(round)) if round.calls.is_empty()) {
            turns.push(SampleTurn::User { texts: vec!["go on".into()], image: None });
        }
        let dialect = SAMPLE_DIALECTS.iter().find(|dialect| dialect.format == format);
        let dialect = dialect.expect("every format has samples");
        (dialect.write)(SampleWriter::new(&setting, seed), &turns)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::json::{JsonQuirks, SampleJson};

    proptest! {
        #[test]
        fn reading_a_sample_gives_its_conversation(sample in samples()) {
            let request = sample.request();
            prop_assert_eq!(request.conversation(), &sample.conversation);
        }

        #[test]
        fn format_of_a_long_sample_is_detected(sample in samples()) {
            // Two plain user texts are the same in two dialects.
            let is_unambiguous = sample.conversation.messages.len() > 3 && sample.format != Format::OpenAiChat;
            prop_assume!(is_unambiguous);
            prop_assert_eq!(Format::detect(sample.body.as_bytes()), Some(sample.format));
        }
    }

    #[test]
    fn body_without_quirks_is_plain_json() {
        let json = SampleJson::Object(vec![
            ("a", SampleJson::text("é/")),
            ("b", SampleJson::List(vec![SampleJson::raw("1"), SampleJson::raw("2")])),
        ]);
        assert_eq!(JsonQuirks(0).write(&json), r#"{"a":"é/","b":[1,2]}"#);
    }
}
