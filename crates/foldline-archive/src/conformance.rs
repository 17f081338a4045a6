//! The tests that every store must pass (cargo feature `testing`).
//!
//! A store's test file calls [`store_conformance!`](crate::store_conformance) with a [`StoreFixture`], which makes one
//! test of each function here. The tests use the archive as its callers do; where a situation cannot be caused from
//! outside, such as two texts with one handle, they call the store.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a failing test panics")]

use std::time::{Duration, Instant};

use foldline::{Handle, Original, OriginalStore};

use crate::archive::{Archive, ArchiveOptions};
use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::originals::pack::PackSlot;
use crate::sessions::journal::{JournalCheckpoint, RequestRecord};
use crate::sessions::ledger::SessionLedger;
use crate::store::{ArchiveScope, InsertOutcome, NewPack, NewRow, OriginalSelection, OriginalState};
use crate::tenant::TenantArchive;
use crate::{ArchiveKey, RetentionPolicy};

/// A store under test: empty at first, and the same at every call.
pub trait StoreFixture {
    /// Opens the archive with these options.
    ///
    /// # Errors
    ///
    /// The error of the store.
    fn open_with(&self, options: ArchiveOptions) -> Result<Archive, Error>;

    /// Opens the archive without a key.
    fn open(&self) -> Archive {
        self.open_with(ArchiveOptions::default()).unwrap()
    }
}

/// Makes a test of each function of [`conformance`](crate::conformance), with a new fixture for each.
#[macro_export]
macro_rules! store_conformance {
    ($fixture:expr) => {
        $crate::store_conformance!($fixture =>
            originals_round_trip_exactly,
            storing_again_adds_nothing,
            metadata_is_returned,
            handles_resolve_by_prefix,
            taken_handle_is_refused_alone,
            damaged_original_is_replaced,
            tenants_are_isolated,
            credentials_have_lasting_namespaces,
            first_fact_wins,
            facts_belong_to_sessions,
            ledger_tells_when_its_session_was_used,
            journal_is_recorded_in_order,
            checkpoint_ends_with_a_deletion,
            search_finds_words_and_pieces,
            unused_originals_expire,
            touched_originals_stay,
            namespace_is_pruned_alone,
            deletion_leaves_no_trace,
            export_is_imported_whole,
            encrypted_archive_needs_its_key,
            replicas_share_a_store,
            statistics_count_each_state
        );
    };
    ($fixture:expr => $($test:ident),+) => {
        $(
            #[test]
            fn $test() {
                $crate::conformance::$test(&$fixture);
            }
        )+
    };
}

/// Longest time in which a record of the journal becomes visible.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(10);

const ONE_DAY: Duration = Duration::from_secs(24 * 3600);

fn original(bytes: &[u8]) -> Original<'_> {
    let (handle, arguments) = (Handle::for_content(bytes), Some(r#"{"path":"src/main.rs"}"#));
    Original { handle, bytes, tool: Some("read_file"), arguments, message: 3, tokens: bytes.len() as u64 / 4 }
}

fn local(archive: &Archive) -> TenantArchive {
    archive.tenant(&Namespace::local())
}

fn other(archive: &Archive) -> TenantArchive {
    archive.tenant(&Namespace::new("other").unwrap())
}

fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

fn unfolds(tenant: &TenantArchive, bytes: &[u8]) -> bool {
    tenant.unfold(Handle::for_content(bytes).as_str()).is_ok_and(|unfolded| unfolded.bytes == bytes)
}

fn unfold_error(tenant: &TenantArchive, bytes: &[u8]) -> ErrorKind {
    tenant.unfold(Handle::for_content(bytes).as_str()).unwrap_err().kind().clone()
}

/// Stores texts as if they had been stored and carried this many days ago.
fn import_aged(tenant: &TenantArchive, texts: &[&str], days: i64) {
    let at = crate::clock::now_millis() - days * crate::clock::to_millis(ONE_DAY);
    let mut lines = String::from("{\"foldline_export\":1}\n");
    for text in texts {
        lines += &format!("{{\"original\":{{\"text\":\"{text}\",\"kept_at\":{at},\"carried_at\":{at}}}}}\n");
    }
    assert_eq!(tenant.import(lines.as_bytes(), |_| ()).unwrap().added, texts.len() as u64);
}

/// Any bytes, of any size, before and after the store was closed.
pub fn originals_round_trip_exactly(fixture: &impl StoreFixture) {
    let mut texts: Vec<Vec<u8>> = (0..60).map(|at| random_bytes(at, at as usize * 97)).collect();
    texts.extend([vec![0; 100_000], random_bytes(1000, 300_000), "größe\r\n\0".repeat(9_000).into_bytes()]);
    let archive = fixture.open();
    for call in texts.chunks(20) {
        local(&archive).store(&call.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    }
    assert!(texts.iter().all(|text| unfolds(&local(&archive), text)));
    drop(archive);
    let archive = fixture.open();
    assert!(texts.iter().all(|text| unfolds(&local(&archive), text)));
    let verified = archive.verify(|_| ()).unwrap();
    assert_eq!((verified.intact, verified.damaged.len(), verified.structure_errors.len()), (63, 0, 0));
}

/// A request folds what the previous one folded, and may contain the same text twice.
pub fn storing_again_adds_nothing(fixture: &impl StoreFixture) {
    let tenant = local(&fixture.open());
    let counts = tenant.store_durably(&[original(b"a"), original(b"b"), original(b"a")]).unwrap();
    assert_eq!((counts.added, counts.existing), (2, 1));
    let counts = tenant.store_durably(&[original(b"a"), original(b"c")]).unwrap();
    assert_eq!((counts.added, counts.existing), (1, 1));
    assert_eq!(tenant.store_durably(&[]).unwrap(), crate::StoreCounts::default());
}

/// Tool, arguments, session, message, tokens and times come back.
pub fn metadata_is_returned(fixture: &impl StoreFixture) {
    let tenant = local(&fixture.open()).in_session("s-1");
    tenant.store(&[original(b"text")]).unwrap();
    let info = tenant.unfold(Handle::for_content(b"text").as_str()).unwrap().info;
    assert_eq!((info.tool.as_deref(), info.session.as_deref()), (Some("read_file"), Some("s-1")));
    assert_eq!(info.arguments.as_deref(), Some(r#"{"path":"src/main.rs"}"#));
    assert_eq!((info.message, info.tokens, info.length), (3, 1, 4));
    assert!(info.kept_at > 1_700_000_000_000 && info.carried_at == info.kept_at);
}

/// A prefix of eight characters resolves if it is unique.
pub fn handles_resolve_by_prefix(fixture: &impl StoreFixture) {
    let tenant = local(&fixture.open());
    // Found by trial: these two have handles with the same first eight characters.
    let (one, two) = (original(b"text 189306"), original(b"text 279150"));
    tenant.store(&[one, two, original(b"text 1")]).unwrap();
    let third = Handle::for_content(b"text 1");
    assert_eq!(tenant.unfold(&third.as_str()[..8]).unwrap().info.handle, third);
    assert_eq!(tenant.unfold(&one.handle.as_str()[..11]).unwrap().info.handle, one.handle);
    match tenant.unfold(&one.handle.as_str()[..8]).unwrap_err().kind() {
        ErrorKind::Ambiguous { candidates } => assert_eq!(candidates.len(), 2),
        kind => panic!("{kind:?}"),
    }
    assert_eq!(tenant.unfold("00000000").unwrap_err().kind(), &ErrorKind::NotFound);
    assert_eq!(tenant.unfold("0000000").unwrap_err().kind(), &ErrorKind::InvalidHandle);
}

/// Of two texts with one handle the first keeps it; the other texts of the call are stored.
pub fn taken_handle_is_refused_alone(fixture: &impl StoreFixture) {
    let archive = fixture.open();
    let namespace = Namespace::local();
    let row = |key: &str, hash: u8| NewRow {
        handle: crate::store::StoredName { key: key.into(), sealed: None },
        hash: [hash; 32],
        slot: PackSlot { start: 0, description_len: 0, length: 1 },
        tokens: 1,
        message: 0,
        tool: None,
        session: None,
        kept_at: 1,
        carried_at: 1,
    };
    let insert = |rows: Vec<NewRow>| {
        let pack = NewPack { content: vec![1], length: 1, originals: rows };
        archive.store_rows().insert(&namespace, vec![pack]).unwrap()
    };
    let (first, second) = ("0000000000aa", "0000000000bb");
    assert_eq!(insert(vec![row(first, 1)]), [InsertOutcome::Added]);
    assert_eq!(insert(vec![row(first, 2), row(second, 3)]), [InsertOutcome::HandleTaken, InsertOutcome::Added]);
    assert_eq!(insert(vec![row(first, 1), row(second, 4)]), [InsertOutcome::Existing, InsertOutcome::HandleTaken]);
}

/// A damaged original is an error until the same text is stored again.
pub fn damaged_original_is_replaced(fixture: &impl StoreFixture) {
    let archive = fixture.open();
    let tenant = local(&archive);
    tenant.store(&[original(b"text"), original(b"intact")]).unwrap();
    let mut ids = Vec::new();
    let (scope, selection) = (ArchiveScope::Everything, OriginalSelection::After(0, 10));
    let store = archive.store_rows();
    store
        .read(scope, selection, &mut |_, row, _| {
            ids.push((row.id, row.handle.key));
            Ok(std::ops::ControlFlow::Continue(()))
        })
        .unwrap();
    let damaged = ids.iter().find(|(_, key)| *key == Handle::for_content(b"text").as_str()).unwrap().0;
    store.set_states(vec![(damaged, OriginalState::Damaged)]).unwrap();
    assert_eq!(unfold_error(&tenant, b"text"), ErrorKind::Damaged);
    assert!(unfolds(&tenant, b"intact"));
    assert_eq!(tenant.store_durably(&[original(b"text")]).unwrap().added, 1);
    assert!(unfolds(&tenant, b"text"));
}

/// No call of one tenant shows data of another.
pub fn tenants_are_isolated(fixture: &impl StoreFixture) {
    let archive = fixture.open();
    let (ours, theirs) = (local(&archive).in_session("s"), other(&archive).in_session("s"));
    let text = b"the secret recipe";
    ours.store(&[original(text)]).unwrap();
    ours.record_fact("summary", b"f", b"payload").unwrap();
    assert_eq!(unfold_error(&theirs, text), ErrorKind::NotFound);
    assert_eq!(theirs.unfold(&Handle::for_content(text).as_str()[..8]).unwrap_err().kind(), &ErrorKind::NotFound);
    assert_eq!(theirs.search("secret", 0, 9).unwrap().total, 0);
    assert!(theirs.facts().unwrap().is_empty() && theirs.sessions(9).unwrap().is_empty());
    assert_eq!(theirs.stats().unwrap().available, 0);
    assert_eq!(theirs.delete_everything().unwrap().originals, 0);
    // The same text of two tenants is two originals.
    assert_eq!(theirs.store_durably(&[original(text)]).unwrap().added, 1);
    assert_eq!(theirs.delete_original(Handle::for_content(text)).unwrap().originals, 1);
    assert!(unfolds(&ours, text));
}

/// A credential has the same namespace after the archive was opened again.
pub fn credentials_have_lasting_namespaces(fixture: &impl StoreFixture) {
    let name = fixture.open().namespace_for_credential(b"sk-secret").unwrap();
    assert_eq!(fixture.open().namespace_for_credential(b"sk-secret").unwrap(), name);
    assert_ne!(fixture.open().namespace_for_credential(b"sk-another").unwrap(), name);
}

/// Replicas may record different facts at once; one of them is kept, for all.
pub fn first_fact_wins(fixture: &impl StoreFixture) {
    let replicas = [local(&fixture.open()).in_session("s"), local(&fixture.open()).in_session("s")];
    assert_eq!(replicas[0].record_fact("summary", b"f", b"first").unwrap().payload, b"first");
    assert_eq!(replicas[1].record_fact("summary", b"f", b"second").unwrap().payload, b"first");
    let payloads: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let record = |at: usize| {
            let tenant = replicas[at % 2].clone();
            scope.spawn(move || tenant.record_fact("race", b"f", &[at as u8]).unwrap().payload)
        };
        let threads: Vec<_> = (0..8).map(record).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(payloads.iter().all(|payload| *payload == payloads[0]), "{payloads:?}");
}

/// The facts of a session are read at once, oldest first.
pub fn facts_belong_to_sessions(fixture: &impl StoreFixture) {
    let tenant = local(&fixture.open());
    let first = tenant.in_session("s-1");
    assert_eq!(first.fact("summary", b"f").unwrap(), None);
    for (kind, fingerprint) in [("summary", &b"f"[..]), ("cold", b"f"), ("cold", &[0, 255])] {
        first.record_fact(kind, fingerprint, kind.as_bytes()).unwrap();
    }
    tenant.record_fact("summary", b"f", b"of no session").unwrap();
    let facts = first.facts().unwrap();
    assert_eq!(facts.len(), 3);
    assert!(facts.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert_eq!(first.fact("cold", &[0, 255]).unwrap().unwrap().payload, b"cold");
    assert_eq!(tenant.facts().unwrap().len(), 1);
    assert!(tenant.in_session("s-2").facts().unwrap().is_empty());
}

/// A replica learns from one read when another one used the session, and the facts of a second session.
pub fn ledger_tells_when_its_session_was_used(fixture: &impl StoreFixture) {
    let replicas = [local(&fixture.open()), local(&fixture.open())];
    let [writer, reader] = [replicas[0].in_session("s-1"), replicas[1].in_session("s-1")];
    assert_eq!(reader.session_ledger(Some("s-2")).unwrap(), SessionLedger::default());
    writer.write_fact("cold", b"f", b"").unwrap();
    replicas[0].in_session("s-2").write_fact("pins", b"f", b"").unwrap();
    let written_at = reader.session_ledger(None).unwrap().used_at.unwrap();
    std::thread::sleep(Duration::from_millis(5));
    writer.touch_session().unwrap();
    let deadline = Instant::now() + JOURNAL_TIMEOUT;
    let ledger = loop {
        let ledger = reader.session_ledger(Some("s-2")).unwrap();
        if ledger.used_at > Some(written_at) {
            break ledger;
        }
        assert!(Instant::now() < deadline, "the use of the session is not visible");
        std::thread::sleep(Duration::from_millis(5));
    };
    let kinds: Vec<&str> = ledger.facts.iter().map(|fact| fact.kind.as_str()).collect();
    assert_eq!(kinds, ["cold", "pins"]);
}

/// Requests, events and sessions become visible, in order.
pub fn journal_is_recorded_in_order(fixture: &impl StoreFixture) {
    let tenant = local(&fixture.open()).in_session("s-1");
    for raw_tokens in [100, 200] {
        let request = RequestRecord { model: "m".into(), raw_tokens, sent_tokens: 10, folds: 2, ..Default::default() };
        tenant.append_request(&request).unwrap();
    }
    for kind in ["creased", "unfolded"] {
        tenant.append_event(kind, b"{}").unwrap();
    }
    let deadline = Instant::now() + JOURNAL_TIMEOUT;
    while tenant.events(0, 9).unwrap().len() < 2 || tenant.requests(0, 9).unwrap().len() < 2 {
        assert!(Instant::now() < deadline, "the journal was not written");
        std::thread::sleep(Duration::from_millis(10));
    }
    let events = tenant.events(0, 9).unwrap();
    assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["creased", "unfolded"]);
    assert_eq!(tenant.events(events[0].id, 9).unwrap().len(), 1);
    let requests = tenant.requests(0, 9).unwrap();
    assert_eq!((requests[0].raw_tokens, requests[0].session.as_deref()), (200, Some("s-1")));
    let sessions = tenant.sessions(9).unwrap();
    assert_eq!((sessions.len(), sessions[0].requests, sessions[0].raw_tokens), (1, 2, 300));
}

/// A checkpoint is stored while its events exist, only forwards, and is gone with any of them.
pub fn checkpoint_ends_with_a_deletion(fixture: &impl StoreFixture) {
    let archive = fixture.open();
    let (tenant, foreign) = (local(&archive), other(&archive));
    let append = |session: &str| {
        tenant.in_session(session).append_event("activity", b"{}").unwrap();
        assert!(tenant.flush_journal(JOURNAL_TIMEOUT).unwrap());
        tenant.journal_state().unwrap()
    };
    let write = |position, deletions, text: &str| {
        let payload = text.as_bytes().to_vec();
        tenant.write_journal_checkpoint(&JournalCheckpoint { position, deletions, payload }).unwrap()
    };
    let stored = || tenant.journal_checkpoint().unwrap().map(|it| String::from_utf8(it.payload).unwrap());
    foreign.append_event("activity", b"{}").unwrap();
    append("a");
    let state = append("b");
    assert_eq!((state.deletions, state.newest_event), (0, tenant.events(0, 9).unwrap()[1].id));
    assert!(write(state.newest_event, 0, "both") && !write(state.newest_event - 1, 0, "earlier"));
    assert_eq!(stored().as_deref(), Some("both"));
    assert_eq!(foreign.journal_checkpoint().unwrap(), None);

    tenant.delete_session("a").unwrap();
    assert_eq!((stored(), tenant.journal_state().unwrap().deletions), (None, 1));
    assert!(!write(state.newest_event, 0, "both"), "it would bring back what was deleted");
    assert!(write(state.newest_event, 1, "b alone"));

    let scope = ArchiveScope::Everything;
    tenant.store_rows().delete_records(scope, 1).unwrap();
    assert_eq!(stored().as_deref(), Some("b alone"), "no event is that old");
    tenant.store_rows().delete_records(scope, i64::MAX).unwrap();
    assert_eq!((stored(), tenant.journal_state().unwrap().deletions), (None, 2));
    assert_eq!(tenant.journal_state().unwrap().newest_event, 0);

    let state = append("c");
    assert!(write(state.newest_event, 2, "c"));
    tenant.delete_everything().unwrap();
    assert_eq!(stored(), None);
    assert_eq!(foreign.journal_state().unwrap().deletions, 1, "records of all tenants were deleted once");
}

/// Identifiers and paths match by their pieces; equal scores rank the newest first; nothing is query syntax.
pub fn search_finds_words_and_pieces(fixture: &impl StoreFixture) {
    let tenant = local(&fixture.open());
    for text in ["fn readConfigFile() {}", "see src/fold_engine/HTTPServer.rs", "panic one", "panic two"] {
        tenant.store(&[Original { tool: None, arguments: None, ..original(text.as_bytes()) }]).unwrap();
    }
    let found = |words: &str| -> Vec<String> {
        let hits = tenant.search(words, 0, 9).unwrap().hits;
        hits.iter().map(|hit| hit.snippet.clone()).collect()
    };
    for words in ["config", "readConfigFile", "read_config_file", "CONFIG file"] {
        assert_eq!(found(words), ["fn readConfigFile() {}"], "{words}");
    }
    assert_eq!(found("http server"), ["see src/fold_engine/HTTPServer.rs"]);
    assert_eq!(found("panic"), ["panic two", "panic one"]);
    assert_eq!(tenant.search("panic", 1, 1).unwrap().hits[0].snippet, "panic one");
    for syntax in ["panic & ! | one", "panic:* <-> 'one'", "\"panic", "panic'; DROP TABLE original; --"] {
        assert!(!found(syntax).is_empty(), "{syntax}");
    }
    assert_eq!(found("zebra"), [""; 0]);
    assert_eq!(tenant.search("*", 0, 9).unwrap_err().kind(), &ErrorKind::InvalidInput);
}

/// Age counts from the last request with the marker; an expired handle is answered with `Expired`.
pub fn unused_originals_expire(fixture: &impl StoreFixture) {
    let archive = fixture.open();
    let tenant = local(&archive);
    import_aged(&tenant, &["old word"], 40);
    import_aged(&tenant, &["recent word"], 3);
    tenant.store(&[original(b"new word")]).unwrap();
    assert_eq!(tenant.search("word", 0, 9).unwrap().total, 3);
    let policy = RetentionPolicy { max_age: Some(Duration::ZERO), ..RetentionPolicy::default() };
    let pruned = archive.prune(&policy).unwrap();
    assert_eq!((pruned.originals, pruned.bytes, pruned.live), (1, 8, 2));
    assert!(matches!(unfold_error(&tenant, b"old word"), ErrorKind::Expired { at } if at > 0));
    assert!(unfolds(&tenant, b"recent word") && unfolds(&tenant, b"new word"));
    assert_eq!(tenant.search("word", 0, 9).unwrap().total, 2);
    // Folded again, it is available again.
    assert_eq!(tenant.store_durably(&[original(b"old word")]).unwrap().added, 1);
    assert!(unfolds(&tenant, b"old word"));
}

/// A request that carries a marker renews its original, as storing it again does.
pub fn touched_originals_stay(fixture: &impl StoreFixture) {
    let archive = fixture.open();
    let tenant = local(&archive);
    import_aged(&tenant, &["touched", "stored again", "unused"], 40);
    tenant.touch(&[Handle::for_content(b"touched")]).unwrap();
    assert_eq!(tenant.store_durably(&[original(b"stored again")]).unwrap().existing, 1);
    let policy = RetentionPolicy { max_age: Some(30 * ONE_DAY), ..RetentionPolicy::default() };
    assert_eq!(archive.prune(&policy).unwrap().originals, 1);
    assert!(unfolds(&tenant, b"touched") && unfolds(&tenant, b"stored again") && !unfolds(&tenant, b"unused"));
}

/// Pruning, verifying and compacting one namespace changes no other.
pub fn namespace_is_pruned_alone(fixture: &impl StoreFixture) {
    let archive = fixture.open();
    let (ours, theirs) = (local(&archive), other(&archive));
    import_aged(&ours, &["one", "two"], 40);
    import_aged(&theirs, &["one", "two"], 40);
    let policy = RetentionPolicy { max_age: Some(30 * ONE_DAY), max_bytes: Some(0), ..RetentionPolicy::default() };
    assert_eq!(ours.prune(&policy).unwrap().originals, 2);
    assert!(unfolds(&theirs, b"one") && unfolds(&theirs, b"two"));
    assert_eq!(archive.verify_namespace(theirs.namespace(), |_| ()).unwrap().intact, 2);
    assert_eq!(archive.verify_namespace(ours.namespace(), |_| ()).unwrap().intact, 0);
}

/// A deleted original is unknown, not expired, and can be stored again.
pub fn deletion_leaves_no_trace(fixture: &impl StoreFixture) {
    let archive = fixture.open();
    let (first, second) = (local(&archive).in_session("s-1"), local(&archive).in_session("s-2"));
    first.store(&[original(b"one word"), original(b"two words")]).unwrap();
    first.record_fact("summary", b"f", b"payload").unwrap();
    second.store(&[original(b"three words")]).unwrap();
    second.record_fact("summary", b"f", b"payload").unwrap();
    let conversation = first.in_session("c-1");
    conversation.record_fact("summary", b"f", b"payload").unwrap();
    conversation.join_session("s-1").unwrap();
    other(&archive).store(&[original(b"their words")]).unwrap();
    assert_eq!(first.search("words", 0, 9).unwrap().total, 2);
    assert_eq!(first.delete_original(Handle::for_content(b"two words")).unwrap().originals, 1);
    assert_eq!(unfold_error(&first, b"two words"), ErrorKind::NotFound);
    assert!(unfolds(&first, b"one word"));
    assert_eq!(first.search("words", 0, 9).unwrap().total, 1);
    let deleted = first.delete_session("s-1").unwrap();
    assert_eq!((deleted.originals, deleted.bytes), (1, 8));
    assert!(first.facts().unwrap().is_empty() && second.facts().unwrap().len() == 1);
    assert!(conversation.facts().unwrap().is_empty());
    assert!(unfolds(&second, b"three words"));
    first.store(&[original(b"two words")]).unwrap();
    assert_eq!(first.delete_everything().unwrap().originals, 2);
    assert!(second.facts().unwrap().is_empty() && second.sessions(9).unwrap().is_empty());
    assert!(unfolds(&other(&archive), b"their words"));
    assert_eq!(archive.delete_everything().unwrap().originals, 1);
}

/// Another namespace gets the same originals, metadata and facts.
pub fn export_is_imported_whole(fixture: &impl StoreFixture) {
    let archive = fixture.open();
    let (from, to) = (local(&archive).in_session("s-1"), other(&archive));
    let texts: Vec<Vec<u8>> = (0..300).map(|at| random_bytes(at, 10)).chain([b"text\n\0".to_vec(), vec![]]).collect();
    from.store(&texts.iter().map(|text| original(text)).collect::<Vec<_>>()).unwrap();
    from.record_fact("summary", &[0, 255], b"payload").unwrap();
    let mut export = Vec::new();
    let exported = from.export(&mut export, |_| ()).unwrap();
    assert_eq!((exported.originals, exported.facts, exported.damaged), (302, 1, 0));
    let imported = to.import(export.as_slice(), |_| ()).unwrap();
    assert_eq!((imported.added, imported.facts, imported.rejected), (302, 1, 0));
    for text in &texts {
        let handle = Handle::for_content(text);
        assert_eq!(from.unfold(handle.as_str()).unwrap(), to.unfold(handle.as_str()).unwrap());
    }
    assert_eq!(to.in_session("s-1").fact("summary", &[0, 255]).unwrap().unwrap().payload, b"payload");
    let again = to.import(export.as_slice(), |_| ()).unwrap();
    assert_eq!((again.added, again.existing, again.facts), (0, 302, 0));
}

/// An encrypted archive opens only with its key, and works like any other.
pub fn encrypted_archive_needs_its_key(fixture: &impl StoreFixture) {
    if !cfg!(feature = "encryption") {
        return;
    }
    let options = |secret| ArchiveOptions { key: Some(ArchiveKey::new(&[secret; 32]).unwrap()), ..Default::default() };
    let archive = fixture.open_with(options(1)).unwrap();
    let tenant = local(&archive).in_session("s-1");
    tenant.store(&[original(b"sealed words")]).unwrap();
    tenant.record_fact("summary", b"f", b"payload").unwrap();
    let handle = Handle::for_content(b"sealed words");
    assert_eq!(tenant.unfold(&handle.as_str()[..8]).unwrap().info.session.as_deref(), Some("s-1"));
    assert_eq!(tenant.facts().unwrap()[0].fingerprint, b"f");
    assert_eq!(tenant.sessions(9).unwrap()[0].name, "s-1");
    assert_eq!(tenant.store_durably(&[original(b"sealed words")]).unwrap().existing, 1);
    assert_eq!(archive.verify(|_| ()).unwrap().intact, 1);
    drop((tenant, archive));
    for denied in [options(2), ArchiveOptions::default()] {
        assert_eq!(fixture.open_with(denied).unwrap_err().kind(), &ErrorKind::WrongKey);
    }
    assert!(unfolds(&local(&fixture.open_with(options(1)).unwrap()), b"sealed words"));
}

/// Several archives on one store, as in several processes: no original is lost, and each sees those of the others.
pub fn replicas_share_a_store(fixture: &impl StoreFixture) {
    let replicas: Vec<TenantArchive> = (0..3).map(|_| local(&fixture.open())).collect();
    let text = |thread: u64, at: u64| random_bytes(thread * 1000 + at, 2_000);
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let tenant = replicas[thread as usize % 3].clone();
            scope.spawn(move || {
                for at in 0..10 {
                    tenant.store(&[original(&text(thread, at)), original(b"the same for all")]).unwrap();
                }
            });
        }
    });
    for replica in &replicas {
        assert!((0..6).all(|thread| (0..10).all(|at| unfolds(replica, &text(thread, at)))));
    }
    assert_eq!(replicas[0].stats().unwrap().available, 61);
}

/// Available, expired and damaged originals, tools, sessions and bytes are counted.
pub fn statistics_count_each_state(fixture: &impl StoreFixture) {
    let archive = fixture.open();
    let tenant = local(&archive);
    assert_eq!(tenant.stats().unwrap().available, 0);
    import_aged(&tenant, &["expired"], 40);
    tenant.in_session("s-1").store(&[original(b"one"), original(b"four")]).unwrap();
    let policy = RetentionPolicy { max_age: Some(30 * ONE_DAY), ..RetentionPolicy::default() };
    archive.prune(&policy).unwrap();
    let stats = tenant.stats().unwrap();
    assert_eq!((stats.available, stats.expired, stats.damaged), (2, 1, 0));
    assert_eq!((stats.bytes, stats.sessions, stats.tools.len()), (7, 1, 1));
    assert_eq!((stats.tools[0].tool.as_str(), stats.tools[0].originals), ("read_file", 2));
    assert!(stats.packed_bytes > 0 && stats.oldest_at.is_some() && stats.newest_at >= stats.oldest_at);
}

#[cfg(test)]
mod sqlite {
    use super::*;

    /// An archive in a temporary folder.
    struct TempFile(tempfile::TempDir);

    impl StoreFixture for TempFile {
        fn open_with(&self, options: ArchiveOptions) -> Result<Archive, Error> {
            Archive::open_with(self.0.path().join("archive.db"), options)
        }
    }

    crate::store_conformance!(TempFile(tempfile::tempdir().unwrap()));
}
