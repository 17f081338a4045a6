//! Summaries that were prepared: used when they are fresh, never when they are not, and no request waits.

use std::time::Duration;

use foldline::{Message, Role};
use foldline_rlm::{
    End, Enforce, Fingerprint, Limit, Outcome, Preparation, Strategy, Summariser, enforce_context_window, prepare,
};

use crate::cascade::{session, with};
use crate::server::{Reply, Server};

const SUMMARY: &str = "Goal: make the importer accept empty archives. Parts were read and edited so far.";

#[tokio::test]
async fn a_fresh_summary_is_used_without_asking_a_model() {
    let server = Server::start(|_| Reply::hand_in(SUMMARY)).await;
    let summariser = Summariser::new(server.chat(32_000));
    let mut with = Enforce { summariser: Some(&summariser), ..with(16_384) };
    let mut it = session(44);
    assert!(!with.is_near(with.meter.conversation(&session(8))) && with.is_near(with.meter.conversation(&it)));
    let prepared = prepare(&it, &with, None, &|_| ()).await.prepared.unwrap();
    assert_eq!(server.asked().len(), 1);
    assert!(prepared.spent.usage.input > 0, "what it cost is counted");
    assert_eq!(*prepared.fingerprint(), Fingerprint::of(&it.messages[..prepared.until()]));

    // It survives a ledger.
    let bytes = serde_json::to_vec(&prepared).unwrap();
    let prepared: foldline_rlm::Prepared = serde_json::from_slice(&bytes).unwrap();

    it.messages.push(Message::text(Role::Assistant, "going on"));
    with.summariser = None;
    with.prepared = Some(&prepared);
    let done = enforce_context_window(&mut it, &with, &|_| ()).await;
    assert_eq!(done.end, End::Fits(Strategy::Prepared));
    assert_eq!(server.asked().len(), 1, "nobody waited for a model");
    assert!(
        it.messages.iter().flat_map(|it| &it.parts).filter_map(|it| it.as_text()).any(|text| text.contains(SUMMARY))
    );
}

#[tokio::test]
async fn a_stale_summary_is_not_used() {
    let server = Server::start(|_| Reply::hand_in(SUMMARY)).await;
    let summariser = Summariser::new(server.chat(32_000));
    let preparing = Enforce { summariser: Some(&summariser), ..with(16_384) };
    let mut it = session(60);
    let prepared = prepare(&it, &preparing, None, &|_| ()).await.prepared.unwrap();
    it.messages[1] = Message::text(Role::User, "make the exporter accept empty archives");
    assert!(!prepared.is_fresh(&it.messages));
    let with = Enforce { prepared: Some(&prepared), ..with(16_384) };
    let done = enforce_context_window(&mut it, &with, &|_| ()).await;
    assert_eq!(done.end, End::Fits(Strategy::Chunk));
}

#[tokio::test]
async fn what_a_model_wrote_badly_is_not_prepared() {
    let server = Server::start(|_| Reply::hand_in("I'm sorry, I can't do that for the importer.")).await;
    let summariser = Summariser::new(server.chat(32_000));
    let with = Enforce { summariser: Some(&summariser), ..with(16_384) };
    let refused = prepare(&session(60), &with, None, &|_| ()).await;
    assert_eq!((refused.prepared, refused.outcome), (None, Some(Outcome::Exhausted(Limit::Refusals))));
    assert_eq!(refused.spent.usage.input, 300, "what led to nothing was paid for, too");
    assert_eq!(prepare(&session(0), &with, None, &|_| ()).await, Preparation::default());
    assert_eq!(prepare(&session(60), &crate::cascade::with(16_384), None, &|_| ()).await, Preparation::default());
}

#[tokio::test]
async fn a_later_one_goes_on_from_an_earlier_one() {
    let server = Server::start(|_| Reply::hand_in(SUMMARY)).await;
    let summariser = Summariser::new(server.chat(32_000));
    let with = Enforce { summariser: Some(&summariser), ..with(16_384) };
    let first = prepare(&session(40), &with, None, &|_| ()).await.prepared.unwrap();
    let second = prepare(&session(60), &with, Some(&first), &|_| ()).await.prepared.unwrap();
    assert!(second.until() > first.until() && second.is_fresh(&session(60).messages));
    let question = server.asked()[1].text();
    assert!(question.contains(SUMMARY) && !question.contains("compute(0, 0)"), "raw history is not read again");
    assert_eq!(second.spent.iterations, 1);
    let slow = Server::start(|_| Reply::After(Duration::from_secs(60), Box::new(Reply::hand_in(SUMMARY)))).await;
    let summariser = Summariser::new(slow.chat(32_000));
    let with = Enforce { summariser: Some(&summariser), ..with };
    let it = session(60);
    let given_up = tokio::time::timeout(Duration::from_millis(50), prepare(&it, &with, None, &|_| ())).await;
    assert!(given_up.is_err() && it == session(60));
}
