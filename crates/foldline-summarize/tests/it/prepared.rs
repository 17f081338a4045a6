//! Prepared summaries are used if fresh, never if stale, and no request waits for them.

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
    let summarizer = Summarizer::new(server.chat_model(32_000));
    let mut options = EnforceOptions { summarizer: Some(summarizer.clone()), ..options_for(16_384) };
    let mut session = sample_session(44);
    assert!(
        !options.should_prepare(options.meter.conversation(&sample_session(8)))
            && options.should_prepare(options.meter.conversation(&session))
    );
    let prepared = prepare_summary(&session, &options, None, &|_| ()).await.prepared.unwrap();
    assert_eq!(server.requests().len(), 1);
    assert!(prepared.spent.usage.input > 0, "the cost is counted");
    assert_eq!(*prepared.fingerprint(), MessageFingerprint::from_messages(&session.messages[..prepared.until()]));

    // It survives serialization.
    let bytes = serde_json::to_vec(&prepared).unwrap();
    let prepared: foldline_summarize::PreparedSummary = serde_json::from_slice(&bytes).unwrap();

    session.messages.push(Message::text(Role::Assistant, "going on"));
    options.summarizer = None;
    options.prepared = Some(prepared.clone());
    let result = enforce_context_window(&mut session, &options, &|_| ()).await;
    assert_eq!(result.outcome, EnforceOutcome::Fits(EnforceStrategy::Prepared));
    assert_eq!(server.requests().len(), 1, "no model was called");
    assert!(
        session
            .messages
            .iter()
            .flat_map(|message| &message.parts)
            .filter_map(|part| part.as_text())
            .any(|text| text.contains(SUMMARY_TEXT))
    );
}

#[tokio::test]
async fn stale_summary_is_not_used() {
    let server = ModelServer::start(|_| ScriptedReply::final_call(SUMMARY_TEXT)).await;
    let summarizer = Summarizer::new(server.chat_model(32_000));
    let prepare_options = EnforceOptions { summarizer: Some(summarizer.clone()), ..options_for(16_384) };
    let mut session = sample_session(60);
    let prepared = prepare_summary(&session, &prepare_options, None, &|_| ()).await.prepared.unwrap();
    session.messages[1] = Message::text(Role::User, "make the exporter accept empty archives");
    assert!(!prepared.is_fresh(&session.messages));
    let options = EnforceOptions { prepared: Some(prepared.clone()), ..options_for(16_384) };
    let result = enforce_context_window(&mut session, &options, &|_| ()).await;
    assert_eq!(result.outcome, EnforceOutcome::Fits(EnforceStrategy::Excerpt));
}

#[tokio::test]
async fn rejected_summary_is_not_prepared() {
    let server =
        ModelServer::start(|_| ScriptedReply::final_call("I'm sorry, I can't do that for the importer.")).await;
    let summarizer = Summarizer::new(server.chat_model(32_000));
    let options = EnforceOptions { summarizer: Some(summarizer.clone()), ..options_for(16_384) };
    let rejected = prepare_summary(&sample_session(60), &options, None, &|_| ()).await;
    assert_eq!((rejected.prepared, rejected.outcome), (None, Some(SummaryOutcome::Exhausted(LimitKind::Refusals))));
    assert_eq!(rejected.spent.usage.input, 300, "a rejected summary costs too");
    assert_eq!(prepare_summary(&sample_session(0), &options, None, &|_| ()).await, PrepareResult::default());
    assert_eq!(
        prepare_summary(&sample_session(60), &crate::cascade::options_for(16_384), None, &|_| ()).await,
        PrepareResult::default()
    );
}

#[tokio::test]
async fn later_summary_extends_the_earlier_one() {
    let server = ModelServer::start(|_| ScriptedReply::final_call(SUMMARY_TEXT)).await;
    let summarizer = Summarizer::new(server.chat_model(32_000));
    let options = EnforceOptions { summarizer: Some(summarizer.clone()), ..options_for(16_384) };
    let first = prepare_summary(&sample_session(40), &options, None, &|_| ()).await.prepared.unwrap();
    let second = prepare_summary(&sample_session(60), &options, Some(&first), &|_| ()).await.prepared.unwrap();
    assert!(second.until() > first.until() && second.is_fresh(&sample_session(60).messages));
    let prompt = server.requests()[1].text();
    assert!(prompt.contains(SUMMARY_TEXT) && !prompt.contains("compute(0, 0)"), "raw history is not read again");
    assert_eq!(second.spent.iterations, 1);
    let slow = ModelServer::start(|_| {
        ScriptedReply::Delayed(Duration::from_secs(60), Box::new(ScriptedReply::final_call(SUMMARY_TEXT)))
    })
    .await;
    let summarizer = Summarizer::new(slow.chat_model(32_000));
    let options = EnforceOptions { summarizer: Some(summarizer.clone()), ..options };
    let session = sample_session(60);
    let timed_out =
        tokio::time::timeout(Duration::from_millis(50), prepare_summary(&session, &options, None, &|_| ())).await;
    assert!(timed_out.is_err() && session == sample_session(60));
}
