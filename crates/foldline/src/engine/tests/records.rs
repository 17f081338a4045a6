//! Records of decided folds: a proxy of another version continues the conversation with the same bytes.

use std::sync::Arc;

use proptest::prelude::*;

use super::guarantees::{InMemoryStore, budgets, count_tokens, options, prefix_of, raw_tokens};
use crate::conversation::PartId;
use crate::engine::marker;
use crate::engine::record::FoldRecord;
use crate::laws::{self, LawProfile};
use crate::testing::{SampleRequest, samples};
use crate::tokens::Tokens;
use crate::wire::Request;
use crate::{
    Conversation, Error, FoldOptions, FoldState, FoldedConversation, FoldedRequest, Ledger, Message, Part, Policy,
    Role, apply, apply_from, resume,
};

/// A conversation that is served by proxies with different decision rules, which share a ledger.
struct Fleet<'r> {
    request: &'r Request<'r>,
    ledger: Ledger,
}

impl<'r> Fleet<'r> {
    fn new(request: &'r Request<'r>) -> Self {
        Self { request, ledger: Ledger::default() }
    }

    /// Folds the conversation up to a request point with these options, and records what is new if `stores`.
    fn serve(
        &mut self,
        state: FoldState,
        point: usize,
        options: &FoldOptions,
        stores: bool,
    ) -> Result<FoldedConversation, Error> {
        let rules = options.decision_rules();
        if !self.ledger.is_decided_by(rules, point) || self.ledger.rules.is_empty() {
            self.ledger.rules.insert(if self.ledger.rules.is_empty() { 0 } else { point }, rules);
        }
        let prefix = prefix_of(self.request.conversation(), point);
        let mut folded = resume(state, &prefix, options, &self.ledger)?;
        if let Some(record) = folded.state().new_record(options, &self.ledger, &prefix.messages).filter(|_| stores) {
            let stored = serde_json::to_vec(&record).unwrap();
            let record = Arc::new(serde_json::from_slice(&stored).unwrap());
            self.ledger.records.entry(point).or_default().push(record);
            folded.set_recorded();
        }
        Ok(folded)
    }
}

/// Returns the options of two versions, which decide differently.
fn versions(request: &Request<'_>, share: f64) -> [FoldOptions; 2] {
    let budget = (raw_tokens(request) as f64 * share) as Tokens;
    let options = FoldOptions { handles: true, ..options(request, budget) }.with_overhead_of(request.conversation());
    [Policy::balanced(), Policy::tight()].map(|policy| FoldOptions { policy, ..options.clone() })
}

fn rendered<'m>(folded: &FoldedConversation, request: &Request<'m>, point: usize) -> Vec<Message<'m>> {
    folded.messages(&prefix_of(request.conversation(), point))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Proxies of the same version render the same, with records and without, and from any state.
    #[test]
    fn records_change_nothing_for_the_same_version(sample in samples(), share in budgets(), lost in any::<u64>()) {
        let request = sample.request();
        let [own, _] = versions(&request, share);
        let mut fleet = Fleet::new(&request);
        let mut kept = FoldState::default();
        for (turn, point) in request.conversation().request_points().into_iter().enumerate() {
            let prefix = prefix_of(request.conversation(), point);
            let alone = crate::fold(&prefix, &own, &Ledger::default());
            let served = fleet.serve(std::mem::take(&mut kept), point, &own, lost >> (turn % 64) & 1 == 0);
            let restarted = crate::fold(&prefix, &own, &fleet.ledger);
            let (Ok(alone), Ok(served), Ok(restarted)) = (&alone, &served, &restarted) else {
                prop_assert!(alone.is_err() && served.is_err() && restarted.is_err());
                continue;
            };
            for other in [served, restarted] {
                prop_assert_eq!(rendered(other, &request, point), rendered(alone, &request, point));
                prop_assert_eq!((other.tokens, &other.creases), (alone.tokens, &alone.creases));
            }
            kept = served.clone().into_state();
        }
    }

    /// A conversation whose requests are served by two versions in turn changes only at creases, and fits.
    #[test]
    fn another_version_continues_the_rendering(sample in samples(), share in budgets(), turns in any::<u64>()) {
        let request = sample.request();
        let versions = versions(&request, share);
        let mut fleet = Fleet::new(&request);
        let mut sent: Option<Vec<Message<'_>>> = None;
        for (turn, point) in request.conversation().request_points().into_iter().enumerate() {
            let options = &versions[(turns >> (turn % 64) & 1) as usize];
            let Ok(folded) = fleet.serve(FoldState::default(), point, options, true) else { continue };
            let now = rendered(&folded, &request, point);
            prop_assert!(folded.tokens <= options.budget);
            if folded.creases.last().is_none_or(|crease| crease.request_point != point) {
                prop_assert!(sent.is_none_or(|sent| now.starts_with(&sent)), "at {}", point);
            }
            // Either version renders the same from the ledger.
            let prefix = prefix_of(request.conversation(), point);
            for again in versions.iter().filter_map(|options| crate::fold(&prefix, options, &fleet.ledger).ok()) {
                prop_assert_eq!(&rendered(&again, &request, point), &now);
            }
            sent = Some(now);
        }
    }

    /// A lost record changes the rendering once: the next request fits, and those after it begin with it.
    #[test]
    fn lost_record_changes_the_rendering_once(sample in samples(), share in budgets(), lost in 0_usize..8) {
        let request = sample.request();
        let [old, new] = versions(&request, share);
        let mut fleet = Fleet::new(&request);
        let points = request.conversation().request_points();
        let (before, after) = points.split_at(points.len() / 2);
        for &point in before {
            drop(fleet.serve(FoldState::default(), point, &old, true));
        }
        let lost = fleet.ledger.records.keys().copied().nth(lost);
        lost.map(|point| fleet.ledger.records.remove(&point));
        let mut sent: Option<Vec<Message<'_>>> = None;
        for &point in after {
            let Ok(folded) = fleet.serve(FoldState::default(), point, &new, true) else { continue };
            let now = rendered(&folded, &request, point);
            prop_assert!(folded.tokens <= new.budget);
            if folded.creases.last().is_none_or(|crease| crease.request_point != point) {
                prop_assert!(sent.is_none_or(|sent| now.starts_with(&sent)), "at {}", point);
            }
            sent = Some(now);
        }
    }

    /// What another version decided is valid and recoverable in the bytes that are sent.
    #[test]
    fn adopted_folds_are_valid_and_recoverable(sample in samples(), share in budgets()) {
        let request = sample.request();
        let versions = versions(&request, share);
        let store = InMemoryStore::default();
        let apply_at = |ledger: &Ledger, options: &FoldOptions| apply(&request, options, ledger, Some(&store), &|_| ());
        let mut ledger = Ledger { rules: [(0, versions[0].decision_rules())].into(), ..Ledger::default() };
        let Ok(mut first) = apply_at(&ledger, &versions[0]) else { return Ok(()) };
        let Some(record) = first.new_record(&request, &versions[0], &ledger) else { return Ok(()) };
        first.set_recorded();
        prop_assert!(first.new_record(&request, &versions[0], &ledger).is_none(), "it is recorded");
        ledger.records.insert(request.conversation().messages.len(), vec![Arc::new(record)]);
        let adopted = apply_at(&ledger, &versions[1]).unwrap();
        prop_assert_eq!(String::from_utf8_lossy(&adopted.body), String::from_utf8_lossy(&first.body));
        check_body(&sample, &request, &adopted, &versions[1], &store)?;
        prop_assert!(adopted.new_record(&request, &versions[1], &ledger).is_none());
    }

    /// Records of another conversation are rejected or give some valid rendering; nothing panics.
    #[test]
    fn foreign_records_are_harmless(one in samples(), other in samples(), share in budgets()) {
        let (one, other) = (one.request(), other.request());
        let mut fleet = Fleet::new(&one);
        let [old, new] = versions(&one, share);
        for point in one.conversation().request_points() {
            drop(fleet.serve(FoldState::default(), point, &old, true));
        }
        let store = InMemoryStore::default();
        drop(apply_from(FoldState::default(), &other, &new, &fleet.ledger, Some(&store), &|_| ()));
    }
}

/// A damage of a record in the ledger.
type Damage = fn(&mut serde_json::Value);

/// Damages whose adoption would panic, lose messages or take memory without bound.
const DAMAGES: [(&str, Damage); 9] = [
    ("a result outside of its note", |record| {
        record["notes"][0]["result_handles"] =
            serde_json::json!([[{ "message": 999, "part": 0, "inner": 0 }, "aaaaaaaaaaaa"]]);
    }),
    ("notes that overlap", |record| {
        let mut inner = record["notes"][0].clone();
        inner["messages"]["start"] = (inner["messages"]["start"].as_u64().unwrap() + 2).into();
        record["notes"].as_array_mut().unwrap().push(inner);
    }),
    ("a note beyond the messages", |record| record["notes"][0]["messages"]["end"] = 999.into()),
    ("no notes", |record| record["notes"] = serde_json::json!([])),
    ("dropped messages twice", |record| {
        let range = record["dropped"][0].clone();
        record["dropped"].as_array_mut().unwrap().push(range);
    }),
    ("dropped messages beyond the last", |record| record["dropped"][0]["end"] = 999.into()),
    ("the task is dropped", |record| record["dropped"][0]["start"] = 0.into()),
    ("a part beyond the messages", |record| {
        let at = PartId::new(usize::MAX, 0);
        let part =
            serde_json::json!({ "at": at, "stage": record["notes"][0]["stage"], "pass": "clip", "edit": "drop" });
        record["parts"].as_array_mut().unwrap().push(part);
    }),
    ("tokens that overflow", |record| record["creases"][0]["saved_tokens"] = u64::MAX.into()),
];

#[test]
fn damaged_records_are_rejected() {
    let mut messages = vec![Message::text(Role::User, "Read them all.")];
    for at in 0..60 {
        messages.push(Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), "read", "{}")]));
        messages
            .push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), format!("line {at}\n").repeat(40))]));
    }
    let conversation = Conversation { messages, ..Conversation::default() };
    let old = FoldOptions { handles: true, ..FoldOptions::for_model("gpt-4o", 1_000) };
    let new = FoldOptions { policy: Policy::tight(), ..old.clone() };
    let point = conversation.messages.len();
    let whole = prefix_of(&conversation, point);
    let mut ledger = Ledger { rules: [(0, old.decision_rules())].into(), ..Ledger::default() };
    let first = crate::fold(&whole, &old, &ledger).unwrap();
    let record = first.state().new_record(&old, &ledger, &whole.messages).unwrap();
    let undamaged = serde_json::to_value(&record).unwrap();
    for (name, damage) in DAMAGES {
        let mut record = undamaged.clone();
        damage(&mut record);
        assert_ne!(record, undamaged, "{name}");
        let record: FoldRecord = serde_json::from_value(record).unwrap_or_else(|error| panic!("{name}: {error}"));
        ledger.records = [(point, vec![Arc::new(record)])].into();
        let folded = crate::fold(&whole, &new, &ledger).unwrap();
        assert!(folded.state().new_record(&new, &ledger, &whole.messages).is_some(), "{name}: adopted");
    }
    ledger.records = [(point, vec![Arc::new(record)])].into();
    let adopted = crate::fold(&whole, &new, &ledger).unwrap();
    assert_eq!(adopted.messages(&whole), first.messages(&whole));
}

/// Checks that a body fits, breaks no law, and has only handles that the store restores.
fn check_body(
    sample: &SampleRequest,
    request: &Request<'_>,
    applied: &FoldedRequest,
    options: &FoldOptions,
    store: &InMemoryStore,
) -> Result<(), TestCaseError> {
    prop_assert!(count_tokens(sample, &applied.body) <= options.budget);
    let rewritten = Request::parse(sample.format, &applied.body).unwrap();
    let broken = laws::check(&rewritten, &LawProfile::for_request(request));
    prop_assert!(broken.is_empty(), "{broken:?}");
    let sent = String::from_utf8_lossy(&applied.body);
    let missing = marker::handles(&sent).find(|handle| !store.contains(*handle));
    prop_assert_eq!(missing, None);
    Ok(())
}
