//! Giving up: a future that is dropped at any point leaves the session as it was, and one terminal event is told.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use foldline::{Meter, Part, ToolCall};
use foldline_rlm::{
    Answer, Answering, End, Enforce, Limits, Model, ModelError, ModelErrorKind, Question, Step, Strategy, Summariser,
    Traits, enforce_context_window,
};

use crate::cascade::{session, with};

/// A model that answers after a few polls: it asks a sub-model, looks, fails once, and hands in.
struct Sleepy {
    traits: Traits,
    asked: Mutex<usize>,
}

/// Pending for a few polls.
struct Nap(usize);

impl Future for Nap {
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

impl Model for Sleepy {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn answer<'a>(&'a self, question: &'a Question<'a>) -> Answering<'a> {
        Box::pin(async move {
            Nap(3).await;
            if question.tools.is_empty() {
                return Ok(Answer { text: "parts were read".into(), ..Answer::default() });
            }
            let number = {
                let mut asked = self.asked.lock().unwrap();
                *asked += 1;
                *asked
            };
            let call = |name: &str, arguments: &str| match Part::call("x", name.to_owned(), arguments.to_owned()) {
                Part::ToolCall(ToolCall { id, name, arguments }) => {
                    Ok(Answer { calls: vec![ToolCall { id, name, arguments }], ..Answer::default() })
                }
                _ => unreachable!("it is a call"),
            };
            match number % 4 {
                1 => call("grep", r#"{"pattern":"value_3"}"#),
                2 => call("ask", r#"{"first":1,"last":900,"question":"what was read?"}"#),
                3 => Err(ModelError::new(ModelErrorKind::Overflow(overflow()), "too long")),
                _ => call(
                    "final",
                    r#"{"text":"Goal: make the importer accept empty archives. Parts were read and edited."}"#,
                ),
            }
        })
    }
}

fn overflow() -> foldline::wire::ContextOverflow {
    let body = br#"{"error":{"message":"prompt is too long: 21000 tokens > 20000 maximum"}}"#;
    match foldline::wire::RequestRejection::from_body(400, body) {
        foldline::wire::RequestRejection::Overflow(overflow) => overflow,
        other => panic!("{other:?}"),
    }
}

/// Polls at most so often, then drops. Whether it ended by itself, and what was told.
fn polled(times: usize, paused: &tokio::runtime::Runtime) -> (Option<End>, Vec<Step>, bool) {
    let traits = Traits { window: 30_000, meter: Meter::for_byte_estimate(), ..Traits::of("sleepy") };
    let model: Arc<dyn Model> = Arc::new(Sleepy { traits, asked: Mutex::new(0) });
    let summariser = Summariser::new(model).with_limits(Limits { retries: 0, ..Limits::default() });
    let with = Enforce { summariser: Some(&summariser), ..with(16_384) };
    let mut it = session(60);
    let before = serde_json::to_vec(&it).unwrap();
    let heard = Mutex::new(Vec::new());
    let listener = |event: foldline_rlm::CascadeEvent| heard.lock().unwrap().push(event.step);
    let _inside = paused.enter();
    let end = {
        let mut future = pin!(enforce_context_window(&mut it, &with, &listener));
        let mut context = Context::from_waker(Waker::noop());
        (0..times).find_map(|_| match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => Some(done.end),
            Poll::Pending => None,
        })
    };
    let unchanged = serde_json::to_vec(&it).unwrap() == before;
    let steps = heard.into_inner().unwrap();
    (end, steps.into_iter().filter(|step| !matches!(step, Step::Progress(_))).collect(), unchanged)
}

#[test]
fn dropped_at_any_await_the_session_is_byte_for_byte_what_it_was() {
    let paused = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut ended = None;
    for times in 0..400 {
        let (end, steps, unchanged) = polled(times, &paused);
        match end {
            None => {
                assert!(unchanged, "dropped after {times} polls");
                if times > 0 {
                    assert!(
                        matches!(&steps[..], [Step::Started { .. }, Step::Failed { why, .. }] if why == "given up before the end"),
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
    assert_eq!((end, steps), (End::Fits(Strategy::Rlm), 2));
    assert!(times > 10, "it waited in many places: {times}");
    println!("dropped after each of {times} polls");
}

#[tokio::test]
async fn an_aborted_summariser_leaves_the_session_alone() {
    let traits = Traits { window: 30_000, meter: Meter::for_byte_estimate(), ..Traits::of("sleepy") };
    let abort = tokio_util::sync::CancellationToken::new();
    abort.cancel();
    let model: Arc<dyn Model> = Arc::new(Sleepy { traits, asked: Mutex::new(0) });
    let summariser = Summariser::new(model).with_abort(abort);
    let with = Enforce { summariser: Some(&summariser), ..with(16_384) };
    let mut it = session(60);
    let done = enforce_context_window(&mut it, &with, &|_| ()).await;
    assert_eq!((done.end, it), (End::Aborted, session(60)));
}
