//! Aborts: a future dropped at any point leaves the session unchanged, and emits one terminal event.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use foldline::{Meter, Part};
use foldline_summarize::{
    CascadeStep, EnforceOptions, EnforceOutcome, EnforceStrategy, LanguageModel, ModelError, ModelErrorKind, ModelInfo,
    ModelRequest, ModelResponse, ResponseFuture, Summarizer, SummaryLimits, enforce_context_window,
};

use crate::cascade::{options_for, sample_session};

/// A model that answers after a few polls: it calls a sub-model, explores, fails once, and submits.
struct SlowModel {
    info: ModelInfo,
    call_count: Mutex<usize>,
}

/// A future that is pending for a few polls.
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

    fn complete<'a>(&'a self, request: &'a ModelRequest<'a>) -> ResponseFuture<'a> {
        Box::pin(async move {
            PendingPolls(3).await;
            if request.tools.is_empty() {
                return Ok(ModelResponse { text: "parts were read".into(), ..ModelResponse::default() });
            }
            let number = {
                let mut call_count = self.call_count.lock().unwrap();
                *call_count += 1;
                *call_count
            };
            let call = |name: &str, arguments: &str| match Part::call("x", name.to_owned(), arguments.to_owned()) {
                Part::ToolCall(call) => Ok(ModelResponse { calls: vec![call], ..ModelResponse::default() }),
                _ => unreachable!("`Part::call` returns a call"),
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

/// Polls at most this many times, then drops. Returns the outcome if it finished, the steps, and if the session is
/// unchanged.
fn poll_then_drop(times: usize, paused: &tokio::runtime::Runtime) -> (Option<EnforceOutcome>, Vec<CascadeStep>, bool) {
    let info = ModelInfo { window: 30_000, meter: Meter::for_byte_estimate(), ..ModelInfo::for_model("sleepy") };
    let model: Arc<dyn LanguageModel> = Arc::new(SlowModel { info, call_count: Mutex::new(0) });
    let summarizer = Summarizer::new(model).with_limits(SummaryLimits { retries: 0, ..SummaryLimits::default() });
    let options = EnforceOptions { summarizer: Some(summarizer.clone()), ..options_for(16_384) };
    let mut session = sample_session(60);
    let before = serde_json::to_vec(&session).unwrap();
    let steps = Mutex::new(Vec::new());
    let listener = |event: foldline_summarize::CascadeEvent| steps.lock().unwrap().push(event.step);
    let _inside = paused.enter();
    let end = {
        let mut future = pin!(enforce_context_window(&mut session, &options, &listener));
        let mut context = Context::from_waker(Waker::noop());
        (0..times).find_map(|_| match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => Some(result.outcome),
            Poll::Pending => None,
        })
    };
    let unchanged = serde_json::to_vec(&session).unwrap() == before;
    let steps = steps.into_inner().unwrap();
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
                        matches!(&steps[..], [CascadeStep::Started { .. }, CascadeStep::Failed { why, .. }] if why == "aborted before the end"),
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
    let (times, end, steps) = ended.expect("the future finishes");
    assert_eq!((end, steps), (EnforceOutcome::Fits(EnforceStrategy::ModelSummary), 2));
    assert!(times > 10, "expected many await points: {times}");
    println!("dropped after each of {times} polls");
}

#[tokio::test]
async fn aborted_summarizer_leaves_the_session_unchanged() {
    let info = ModelInfo { window: 30_000, meter: Meter::for_byte_estimate(), ..ModelInfo::for_model("sleepy") };
    let abort = tokio_util::sync::CancellationToken::new();
    abort.cancel();
    let model: Arc<dyn LanguageModel> = Arc::new(SlowModel { info, call_count: Mutex::new(0) });
    let summarizer = Summarizer::new(model).with_abort(abort);
    let options = EnforceOptions { summarizer: Some(summarizer.clone()), ..options_for(16_384) };
    let mut session = sample_session(60);
    let result = enforce_context_window(&mut session, &options, &|_| ()).await;
    assert_eq!((result.outcome, session), (EnforceOutcome::Aborted, sample_session(60)));
}
