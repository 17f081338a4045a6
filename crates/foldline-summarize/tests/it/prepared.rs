//! Summaries that were prepared: used when they are fresh, never when they are not, and no request waits.

use std::time::Duration;

use foldline::{Message, Role};
use foldline_summarize::{
    EnforceOptions, EnforceOutcome, EnforceStrategy, LimitKind, MessageFingerprint, PrepareResult, Summarizer,
    SummaryOutcome, enforce_context_window, prepare_summary,
};

use crate::cascade::{options_for, sample_session};
use crate::server::{ModelServer, ScriptedReply};

const SUMMARY_TEXT: &str = "Goal: make the importer accept empty archives. Parts were read and edited so far.";

#[tokio::test]
async fn fresh_summary_is_used_without_a_model_call() {
    let server = ModelServer::start(|_| ScriptedReply::final_call(SUMMARY_TEXT)).await;
    let summariser = Summarizer::new(server.chat_model(32_000));
    let mut with = EnforceOptions { summarizer: Some(&summariser), ..options_for(16_384) };
    let mut it = sample_session(44);
    assert!(
        !with.should_prepare(with.meter.conversation(&sample_session(8)))
            && with.should_prepare(with.meter.conversation(&it))
    );
    let prepared = prepare_summary(&it, &with, None, &|_| ()).await.prepared.unwrap();
    assert_eq!(server.requests().len(), 1);
    assert!(prepared.spent.usage.input > 0, "what it cost is counted");
    assert_eq!(*prepared.fingerprint(), MessageFingerprint::from_messages(&it.messages[..prepared.until()]));

    // It survives a ledger.
    let bytes = serde_json::to_vec(&prepared).unwrap();
    let prepared: foldline_summarize::PreparedSummary = serde_json::from_slice(&bytes).unwrap();

    it.messages.push(Message::text(Role::Assistant, "going on"));
    with.summarizer = None;
    with.prepared = Some(&prepared);
    let done = enforce_context_window(&mut it, &with, &|_| ()).await;
    assert_eq!(done.outcome, EnforceOutcome::Fits(EnforceStrategy::Prepared));
    assert_eq!(server.requests().len(), 1, "nobody waited for a model");
    assert!(
        it.messages
            .iter()
            .flat_map(|it| &it.parts)
            .filter_map(|it| it.as_text())
            .any(|text| text.contains(SUMMARY_TEXT))
    );
}

#[tokio::test]
async fn a_stale_summary_is_not_used() {
    let server = ModelServer::start(|_| ScriptedReply::final_call(SUMMARY_TEXT)).await;
    let summariser = Summarizer::new(server.chat_model(32_000));
    let preparing = EnforceOptions { summarizer: Some(&summariser), ..options_for(16_384) };
    let mut it = sample_session(60);
    let prepared = prepare_summary(&it, &preparing, None, &|_| ()).await.prepared.unwrap();
    it.messages[1] = Message::text(Role::User, "make the exporter accept empty archives");
    assert!(!prepared.is_fresh(&it.messages));
    let with = EnforceOptions { prepared: Some(&prepared), ..options_for(16_384) };
    let done = enforce_context_window(&mut it, &with, &|_| ()).await;
    assert_eq!(done.outcome, EnforceOutcome::Fits(EnforceStrategy::Excerpt));
}

#[tokio::test]
async fn rejected_summary_is_not_prepared() {
    let server =
        ModelServer::start(|_| ScriptedReply::final_call("I'm sorry, I can't do that for the importer.")).await;
    let summariser = Summarizer::new(server.chat_model(32_000));
    let with = EnforceOptions { summarizer: Some(&summariser), ..options_for(16_384) };
    let refused = prepare_summary(&sample_session(60), &with, None, &|_| ()).await;
    assert_eq!((refused.prepared, refused.outcome), (None, Some(SummaryOutcome::Exhausted(LimitKind::Refusals))));
    assert_eq!(refused.spent.usage.input, 300, "what led to nothing was paid for, too");
    assert_eq!(prepare_summary(&sample_session(0), &with, None, &|_| ()).await, PrepareResult::default());
    assert_eq!(
        prepare_summary(&sample_session(60), &crate::cascade::options_for(16_384), None, &|_| ()).await,
        PrepareResult::default()
    );
}

#[tokio::test]
async fn later_summary_extends_the_earlier_one() {
    let server = ModelServer::start(|_| ScriptedReply::final_call(SUMMARY_TEXT)).await;
    let summariser = Summarizer::new(server.chat_model(32_000));
    let with = EnforceOptions { summarizer: Some(&summariser), ..options_for(16_384) };
    let first = prepare_summary(&sample_session(40), &with, None, &|_| ()).await.prepared.unwrap();
    let second = prepare_summary(&sample_session(60), &with, Some(&first), &|_| ()).await.prepared.unwrap();
    assert!(second.until() > first.until() && second.is_fresh(&sample_session(60).messages));
    let question = server.requests()[1].text();
    assert!(question.contains(SUMMARY_TEXT) && !question.contains("compute(0, 0)"), "raw history is not read again");
    assert_eq!(second.spent.iterations, 1);
    let slow = ModelServer::start(|_| {
        ScriptedReply::Delayed(Duration::from_secs(60), Box::new(ScriptedReply::final_call(SUMMARY_TEXT)))
    })
    .await;
    let summariser = Summarizer::new(slow.chat_model(32_000));
    let with = EnforceOptions { summarizer: Some(&summariser), ..with };
    let it = sample_session(60);
    let given_up = tokio::time::timeout(Duration::from_millis(50), prepare_summary(&it, &with, None, &|_| ())).await;
    assert!(given_up.is_err() && it == sample_session(60));
}
