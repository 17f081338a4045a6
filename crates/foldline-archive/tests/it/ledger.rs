//! The ledger and the journal.

use foldline::OriginalStore;
use foldline_archive::{Namespace, RequestRecord};

use crate::support::{TempArchive, original};

/// Two replicas may record different facts; the first one is kept, for both.
#[test]
fn first_recorded_fact_wins() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant().in_session("s-1");
    assert_eq!(tenant.fact("summary", b"f").unwrap(), None);
    assert_eq!(tenant.record_fact("summary", b"f", b"first").unwrap().payload, b"first");
    assert_eq!(tenant.record_fact("summary", b"f", b"second").unwrap().payload, b"first");
    assert_eq!(tenant.record_fact("crease", b"f", b"cold").unwrap().payload, b"cold");
    assert_eq!(tenant.facts().unwrap().len(), 2);
    assert_eq!(temp.local_tenant().in_session("s-1").fact("summary", b"f").unwrap().unwrap().payload, b"first");
    assert_eq!(tenant.in_session("s-2").facts().unwrap(), []);
    let other = temp.open().tenant(&Namespace::new("other").unwrap()).in_session("s-1");
    assert_eq!(other.facts().unwrap(), []);
}

#[test]
fn requests_events_and_sessions_are_recorded() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant().in_session("s-1");
    let request = |raw_tokens| RequestRecord {
        model: "m".into(),
        raw_tokens,
        sent_tokens: 10,
        folds: 2,
        ..RequestRecord::default()
    };
    tenant.append_request(&request(100)).unwrap();
    tenant.append_request(&request(200)).unwrap();
    tenant.append_event("creased", br#"{"price":3}"#).unwrap();
    tenant.append_event("unfolded", b"{}").unwrap();
    // The store call goes through the same writer, in order.
    tenant.store(&[original(b"x")]).unwrap();
    let sessions = tenant.sessions(10).unwrap();
    assert_eq!(sessions.len(), 1);
    assert_eq!((sessions[0].requests, sessions[0].raw_tokens, sessions[0].sent_tokens), (2, 300, 20));
    let requests = tenant.requests(0, 10).unwrap();
    assert_eq!((requests.len(), requests[0].raw_tokens, requests[0].session.as_deref()), (2, 200, Some("s-1")));
    let events = tenant.events(0, 10).unwrap();
    assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["creased", "unfolded"]);
    assert_eq!(tenant.events(events[0].id, 10).unwrap().len(), 1);
    let other = temp.open().tenant(&Namespace::new("other").unwrap());
    assert!(other.sessions(9).unwrap().is_empty() && other.events(0, 9).unwrap().is_empty());
    assert!(other.requests(0, 9).unwrap().is_empty());
}
