//! The engine and the archive together: what is folded out of a request can be had again, and an archive
//! that fails costs no request.

use std::cell::RefCell;
use std::collections::HashMap;

use foldline::laws::LawProfile;
use foldline::testing::samples;
use foldline::wire::{Format, Request};
use foldline::{
    FoldEvent, FoldOptions, FoldSession, FoldedRequest, Handle, Ledger, Meter, ModelTable, Original, OriginalStore,
    Prices, StoreError, Tokens,
};
use foldline::{apply, marker};
use foldline_archive::{Archive, Namespace, TenantArchive};
use proptest::prelude::*;
use serde_json::json;

use crate::small_disk::SmallDisk;
use crate::support::{TempArchive, original, random_bytes};

const MODEL: Option<&str> = Some("gpt-4o");

fn fold_options(request: &Request<'_>, budget: Tokens) -> FoldOptions {
    let table = ModelTable::builtin();
    FoldOptions::new(Meter::for_model(table, MODEL), Prices::for_model(table, MODEL), budget)
        .with_rules(&LawProfile::for_request(request))
}

/// Applies, and gives what is said of originals that were not kept.
fn apply_with_store(
    request: &Request<'_>,
    budget: Tokens,
    keep: &dyn OriginalStore,
) -> (Option<FoldedRequest>, Vec<String>) {
    let refused = RefCell::new(Vec::new());
    let listener = |event| {
        if let FoldEvent::Refused { reason: why } = event
            && why.contains("could not be kept")
        {
            refused.borrow_mut().push(why);
        }
    };
    let applied = apply(request, &fold_options(request, budget), &Ledger::default(), Some(keep), &listener).ok();
    (applied, refused.into_inner())
}

/// A shelf, and a second opinion on what went to it.
struct RecordingStore {
    archive: TenantArchive,
    stored: RefCell<HashMap<Handle, Vec<u8>>>,
}

impl RecordingStore {
    fn new(shelf: TenantArchive) -> Self {
        Self { archive: shelf, stored: RefCell::default() }
    }
}

impl OriginalStore for RecordingStore {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        let mut kept = self.stored.borrow_mut();
        kept.extend(originals.iter().map(|original| (original.handle, original.bytes.to_vec())));
        self.archive.store(originals)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Every handle in a rendering gives the identical bytes, at once and when the archive is opened again.
    #[test]
    fn every_rendered_handle_unfolds(sample in samples(), share in 0.05..0.9) {
        let request = sample.request();
        let raw = fold_options(&request, 0).meter.conversation(request.conversation());
        let place = TempArchive::new();
        let watched = RecordingStore::new(place.local_tenant());
        let (applied, refused) = apply_with_store(&request, (raw as f64 * share) as Tokens, &watched);
        prop_assert_eq!(refused, Vec::<String>::new());
        let Some(applied) = applied else { return Ok(()) };
        let RecordingStore { archive: shelf, stored: kept } = watched;
        let kept = kept.into_inner();
        let handles: Vec<Handle> = marker::handles(std::str::from_utf8(&applied.body).unwrap()).collect();
        for handle in &handles {
            prop_assert_eq!(&shelf.unfold(handle.as_str()).unwrap().bytes, &kept[handle]);
        }
        drop(shelf);
        let shelf = place.local_tenant();
        for handle in &handles {
            prop_assert_eq!(&shelf.unfold(handle.as_str()).unwrap().bytes, &kept[handle]);
        }
    }
}

/// A request of an agent that has read so many files, one a round.
fn agent_request(files: usize) -> String {
    let mut messages = vec![json!({ "role": "user", "content": "Find out why the build is slow." })];
    for file in 0..files {
        let id = format!("call_{file}");
        let text: String = (0..120).map(|line| format!("let step_{line} = measure({file} * {line});\n")).collect();
        let function = json!({ "name": "read_file", "arguments": format!(r#"{{"path":"src/phase_{file}.rs"}}"#) });
        let call = json!({ "id": id, "type": "function", "function": function });
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
        messages.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
    }
    json!({ "model": "gpt-4o", "messages": messages }).to_string()
}

/// A conversation that grows is kept before each request, and what was handed out on the way stays.
#[test]
fn handles_of_earlier_renderings_unfold() {
    let place = TempArchive::new();
    let shelf = place.local_tenant();
    let table = ModelTable::builtin();
    let mut setup = FoldOptions::new(Meter::for_model(table, MODEL), Prices::for_model(table, MODEL), 9_000);
    setup.handles = true;
    let mut folder = FoldSession::new(setup);
    let mut promised: HashMap<Handle, Vec<u8>> = HashMap::new();
    let body = agent_request(60);
    let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
    for message in &request.conversation().messages {
        folder.push(message.clone().into_owned());
        if message.is_assistant() {
            continue;
        }
        folder.plan_request().unwrap();
        folder.store_originals(&shelf).unwrap();
        let rendered: String = folder
            .rendered_messages(0)
            .flat_map(|it| it.parts)
            .map(|part| format!("{part:?}"))
            .collect::<Vec<_>>()
            .join("\n");
        for handle in marker::handles(&rendered) {
            promised.entry(handle).or_insert_with(|| folder.unfold(handle).unwrap());
        }
    }
    assert!(promised.len() > 20, "{}", promised.len());
    drop(shelf);
    let shelf = place.local_tenant();
    for (handle, bytes) in &promised {
        assert!(shelf.unfold(handle.as_str()).unwrap().bytes == *bytes, "{handle}");
    }
}

/// An archive on a full disk: the request goes out folded, without handles, with a warning; and when
/// there is room again, with handles.
#[test]
fn full_disk_fails_no_request() {
    let Some(disk) = SmallDisk::mount("2m") else { return };
    let ballast = disk.path().join("ballast");
    let shelf = Archive::open(disk.path().join("archive.db")).unwrap().tenant(&Namespace::local());
    std::fs::write(&ballast, vec![1; 500_000]).unwrap();
    let mut seed = 0;
    while shelf.store_durably(&[original(&random_bytes(seed, 4_000))]).is_ok() {
        seed += 1;
    }
    let body = agent_request(40);
    let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
    let (sent, refused) = apply_with_store(&request, 12_000, &shelf);
    let sent = sent.unwrap();
    assert!(sent.tokens <= 12_000);
    let text = String::from_utf8(sent.body).unwrap();
    assert_eq!(marker::handles(&text).count(), 0);
    assert!(text.contains("[folded: "), "{text}");
    assert_eq!(refused.len(), 1, "{refused:?}");

    std::fs::remove_file(&ballast).unwrap();
    let (sent, refused) = apply_with_store(&request, 12_000, &shelf);
    let text = String::from_utf8(sent.unwrap().body).unwrap();
    assert_eq!(refused, Vec::<String>::new());
    assert!(marker::handles(&text).count() > 0);
    for handle in marker::handles(&text) {
        assert_eq!(Handle::for_content(&shelf.unfold(handle.as_str()).unwrap().bytes), handle);
    }
}

/// Locked by another process, read by us alone, or torn underneath us: no request is lost, and no handle
/// is handed out.
#[test]
fn failing_archive_fails_no_request() {
    let body = agent_request(40);
    let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
    let check = |name: &str, shelf: &TenantArchive| {
        let (sent, refused) = apply_with_store(&request, 12_000, shelf);
        let text = String::from_utf8(sent.unwrap().body).unwrap();
        assert_eq!(marker::handles(&text).count(), 0, "{name}");
        assert_eq!(refused.len(), 1, "{name}: {refused:?}");
        // With room enough for the client's own bytes, these go out.
        let (sent, _) = apply_with_store(&request, 1_000_000, shelf);
        assert_eq!(String::from_utf8(sent.unwrap().body).unwrap(), body, "{name}");
    };

    let place = TempArchive::new();
    place.local_tenant().store(&[original(b"something")]).unwrap();
    check("opened for reading", &place.open_read_only().unwrap().tenant(&Namespace::local()));

    let shelf = place.local_tenant();
    let other = rusqlite::Connection::open(place.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    check("locked", &shelf);
    other.execute_batch("ROLLBACK").unwrap();
    let (sent, refused) = apply_with_store(&request, 12_000, &shelf);
    assert!(marker::handles(std::str::from_utf8(&sent.unwrap().body).unwrap()).count() > 0);
    assert_eq!(refused, Vec::<String>::new());
    drop(shelf);

    // Cut off while it is open: whatever is handed out can be had.
    let torn = TempArchive::new();
    let shelf = torn.local_tenant();
    shelf.store(&[original(b"something")]).unwrap();
    for ending in ["", "-wal"] {
        let file = std::fs::File::options().write(true).open(torn.folder.path().join(format!("archive.db{ending}")));
        file.unwrap().set_len(0).unwrap();
    }
    let (sent, _) = apply_with_store(&request, 12_000, &shelf);
    for handle in marker::handles(std::str::from_utf8(&sent.unwrap().body).unwrap()) {
        assert_eq!(Handle::for_content(&shelf.unfold(handle.as_str()).unwrap().bytes), handle);
    }
}
