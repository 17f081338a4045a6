//! Giving up: a future that is dropped at any point leaves the session as it was, and one terminal event is told.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use foldline::{Meter, Part, ToolCall};
use foldline_summarize::{
    CascadeStep, EnforceOptions, EnforceOutcome, EnforceStrategy, LanguageModel, ModelError, ModelErrorKind, ModelInfo,
    ModelRequest, ModelResponse, ResponseFuture, Summarizer, SummaryLimits, enforce_context_window,
};

use crate::cascade::{options_for, sample_session};

/// A model that answers after a few polls: it asks a sub-model, looks, fails once, and hands in.
struct SlowModel {
    info: ModelInfo,
    call_count: Mutex<usize>,
}

/// Pending for a few polls.
struct PendingPolls(usize);

impl Future for PendingPolls {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl LanguageModel for SlowModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn complete<'a>(&'a self, question: &'a ModelRequest<'a>) -> ResponseFuture<'a> {
        Box::pin(async move {
            PendingPolls(3).await;
            if question.tools.is_empty() {
                return Ok(ModelResponse { text: "parts were read".into(), ..ModelResponse::default() });
            }
            let number = {
                let mut asked = self.call_count.lock().unwrap();
                *asked += 1;
                *asked
            };
            let call = |name: &str, arguments: &str| match Part::call("x", name.to_owned(), arguments.to_owned()) {
                Part::ToolCall(ToolCall { id, name, arguments }) => {
                    Ok(ModelResponse { calls: vec![ToolCall { id, name, arguments }], ..ModelResponse::default() })
                }
                _ => unreachable!("it is a call"),
            };
            match number % 4 {
                1 => call("grep", r#"{"pattern":"value_3"}"#),
                2 => call("ask", r#"{"first":1,"last":900,"question":"what was read?"}"#),
                3 => Err(ModelError::new(ModelErrorKind::Overflow(sample_overflow()), "too long")),
                _ => call(
                    "final",
                    r#"{"text":"Goal: make the importer accept empty archives. Parts were read and edited."}"#,
                ),
            }
        })
    }
}

fn sample_overflow() -> foldline::wire::ContextOverflow {
    let body = br#"{"error":{"message":"prompt is too long: 21000 tokens > 20000 maximum"}}"#;
    match foldline::wire::RequestRejection::from_body(400, body) {
        foldline::wire::RequestRejection::Overflow(overflow) => overflow,
        other => panic!("{other:?}"),
    }
}

/// Polls at most so often, then drops. Whether it ended by itself, and what was told.
fn poll_then_drop(times: usize, paused: &tokio::runtime::Runtime) -> (Option<EnforceOutcome>, Vec<CascadeStep>, bool) {
    let traits = ModelInfo { window: 30_000, meter: Meter::for_byte_estimate(), ..ModelInfo::for_model("sleepy") };
    let model: Arc<dyn LanguageModel> = Arc::new(SlowModel { info: traits, call_count: Mutex::new(0) });
    let summariser = Summarizer::new(model).with_limits(SummaryLimits { retries: 0, ..SummaryLimits::default() });
    let with = EnforceOptions { summarizer: Some(&summariser), ..options_for(16_384) };
    let mut it = sample_session(60);
    let before = serde_json::to_vec(&it).unwrap();
    let heard = Mutex::new(Vec::new());
    let listener = |event: foldline_summarize::CascadeEvent| heard.lock().unwrap().push(event.step);
    let _inside = paused.enter();
    let end = {
        let mut future = pin!(enforce_context_window(&mut it, &with, &listener));
        let mut context = Context::from_waker(Waker::noop());
        (0..times).find_map(|_| match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => Some(done.outcome),
            Poll::Pending => None,
        })
    };
    let unchanged = serde_json::to_vec(&it).unwrap() == before;
    let steps = heard.into_inner().unwrap();
    (end, steps.into_iter().filter(|step| !matches!(step, CascadeStep::Progress(_))).collect(), unchanged)
}

#[test]
fn session_is_unchanged_when_dropped_at_any_await() {
    let paused = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut ended = None;
    for times in 0..400 {
        let (end, steps, unchanged) = poll_then_drop(times, &paused);
        match end {
            None => {
                assert!(unchanged, "dropped after {times} polls");
                if times > 0 {
                    assert!(
                        matches!(&steps[..], [CascadeStep::Started { .. }, CascadeStep::Failed { why, .. }] if why == "given up before the end"),
                        "{times}: {steps:?}"
                    );
                }
            }
            Some(end) => {
                ended = Some((times, end, steps.len()));
                break;
            }
        }
    }
    let (times, end, steps) = ended.expect("it ends");
    assert_eq!((end, steps), (EnforceOutcome::Fits(EnforceStrategy::ModelSummary), 2));
    assert!(times > 10, "it waited in many places: {times}");
    println!("dropped after each of {times} polls");
}

#[tokio::test]
async fn aborted_summarizer_leaves_the_session_unchanged() {
    let traits = ModelInfo { window: 30_000, meter: Meter::for_byte_estimate(), ..ModelInfo::for_model("sleepy") };
    let abort = tokio_util::sync::CancellationToken::new();
    abort.cancel();
    let model: Arc<dyn LanguageModel> = Arc::new(SlowModel { info: traits, call_count: Mutex::new(0) });
    let summariser = Summarizer::new(model).with_abort(abort);
    let with = EnforceOptions { summarizer: Some(&summariser), ..options_for(16_384) };
    let mut it = sample_session(60);
    let done = enforce_context_window(&mut it, &with, &|_| ()).await;
    assert_eq!((done.outcome, it), (EnforceOutcome::Aborted, sample_session(60)));
}
