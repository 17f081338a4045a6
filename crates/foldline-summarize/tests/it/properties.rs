//! Guarantees of the cascade, for sessions of any shape in each of the three formats.

use foldline::laws;
use foldline::laws::LawProfile;
use foldline::testing::samples;
use foldline::{Conversation, Message, Meter, Part, Role};
use foldline_summarize::{EnforceOptions, EnforceOutcome, EnforceStrategy, enforce_context_window};
use proptest::prelude::*;

fn user_texts(messages: &[Message<'_>]) -> Vec<String> {
    let parts = messages.iter().filter(|message| message.role == Role::User).flat_map(|message| &message.parts);
    parts.filter_map(Part::as_text).map(str::to_owned).collect()
}

fn is_subsequence(few: &[String], many: &[String]) -> bool {
    let mut many = many.iter();
    few.iter().all(|text| many.any(|other| text == other))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn session_fits_or_is_unchanged(sample in samples(), percent in 5..100_u64) {
        let mut session: Conversation<'static> = sample.conversation.clone();
        let meter = Meter::for_byte_estimate();
        let tokens = meter.conversation(&session);
        let profile = LawProfile::for_model(sample.format, None);
        let budget = tokens * percent / 100;
        let options = EnforceOptions { budget, profile: profile.clone(), ..EnforceOptions::new(tokens, meter.clone()) };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let result = runtime.block_on(enforce_context_window(&mut session, &options, &|_| ()));
        match result.outcome {
            EnforceOutcome::Fits(strategy) => {
                prop_assert!(meter.conversation(&session) <= budget);
                let broken = laws::check_conversation(&session, &profile);
                prop_assert!(broken.is_empty(), "{strategy:?}: {broken:?}");
                let (before, after) = (user_texts(&sample.conversation.messages), user_texts(&session.messages));
                prop_assert!(strategy == EnforceStrategy::Truncate || is_subsequence(&before, &after));
                let again = runtime.block_on(enforce_context_window(&mut session, &options, &|_| ()));
                prop_assert_eq!(again.outcome, EnforceOutcome::Unchanged);
            }
            EnforceOutcome::Unchanged => prop_assert!(tokens <= budget),
            _ => prop_assert_eq!(session, sample.conversation),
        }
    }
}
