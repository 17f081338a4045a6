//! The engine and the archive together: everything folded out of a request can be restored, and a failing archive
//! fails no request.

use std::cell::RefCell;
use std::collections::HashMap;

use foldline::engine::{StoreError, marker};
use foldline::laws::LawProfile;
use foldline::testing::samples;
use foldline::tokens::Tokens;
use foldline::wire::{Format, Request};
use foldline::{
    FoldEvent, FoldOptions, FoldSession, FoldedRequest, Handle, Ledger, Meter, ModelTable, Original, OriginalStore,
    Prices, apply,
};
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

/// Applies the engine, and returns the reasons for originals that were not stored.
fn apply_with_store(
    request: &Request<'_>,
    budget: Tokens,
    store: &dyn OriginalStore,
) -> (Option<FoldedRequest>, Vec<String>) {
    let refused = RefCell::new(Vec::new());
    let listener = |event| {
        if let FoldEvent::Refused { reason } = event
            && reason.starts_with("originals could not be kept")
        {
            refused.borrow_mut().push(reason);
        }
    };
    let applied = apply(request, &fold_options(request, budget), &Ledger::default(), Some(store), &listener).ok();
    (applied, refused.into_inner())
}

/// A tenant that also records everything stored through it.
struct RecordingStore {
    archive: TenantArchive,
    stored: RefCell<HashMap<Handle, Vec<u8>>>,
}

impl RecordingStore {
    fn new(archive: TenantArchive) -> Self {
        Self { archive, stored: RefCell::default() }
    }
}

impl OriginalStore for RecordingStore {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        let mut stored = self.stored.borrow_mut();
        stored.extend(originals.iter().map(|original| (original.handle, original.bytes.to_vec())));
        self.archive.store(originals)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Every handle in a rendering returns the identical bytes, immediately and after reopening the archive.
    #[test]
    fn every_rendered_handle_unfolds(sample in samples(), share in 0.05..0.9) {
        let request = sample.request();
        let raw = fold_options(&request, 0).meter.conversation(request.conversation());
        let temp = TempArchive::new();
        let store = RecordingStore::new(temp.local_tenant());
        let (applied, refused) = apply_with_store(&request, (raw as f64 * share) as Tokens, &store);
        prop_assert_eq!(refused, Vec::<String>::new());
        let Some(applied) = applied else { return Ok(()) };
        let RecordingStore { archive: tenant, stored } = store;
        let stored = stored.into_inner();
        let handles: Vec<Handle> = marker::handles(std::str::from_utf8(&applied.body).unwrap()).collect();
        for handle in &handles {
            prop_assert_eq!(&tenant.unfold(handle.as_str()).unwrap().bytes, &stored[handle]);
        }
        drop(tenant);
        let tenant = temp.local_tenant();
        for handle in &handles {
            prop_assert_eq!(&tenant.unfold(handle.as_str()).unwrap().bytes, &stored[handle]);
        }
    }
}

/// Returns a request of an agent that has read this many files, one per round.
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

/// Originals of a growing conversation are stored before each request, and issued handles keep resolving.
#[test]
fn handles_of_earlier_renderings_unfold() {
    let temp = TempArchive::new();
    let tenant = temp.local_tenant();
    let table = ModelTable::builtin();
    let mut options = FoldOptions::new(Meter::for_model(table, MODEL), Prices::for_model(table, MODEL), 9_000);
    options.handles = true;
    let mut folder = FoldSession::new(options);
    let mut issued: HashMap<Handle, Vec<u8>> = HashMap::new();
    let body = agent_request(60);
    let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
    for message in &request.conversation().messages {
        folder.push(message.clone().into_owned());
        if message.is_assistant() {
            continue;
        }
        folder.plan_request().unwrap();
        folder.store_originals(&tenant).unwrap();
        let rendered: String = folder
            .rendered_messages(0)
            .flat_map(|message| message.parts)
            .map(|part| format!("{part:?}"))
            .collect::<Vec<_>>()
            .join("\n");
        for handle in marker::handles(&rendered) {
            issued.entry(handle).or_insert_with(|| folder.unfold(handle).unwrap());
        }
    }
    assert!(issued.len() > 20, "{}", issued.len());
    drop(tenant);
    let tenant = temp.local_tenant();
    for (handle, bytes) in &issued {
        assert!(tenant.unfold(handle.as_str()).unwrap().bytes == *bytes, "{handle}");
    }
}

/// On a full disk the request is sent folded, without handles and with a warning; with handles once there is space.
#[test]
fn full_disk_fails_no_request() {
    let Some(disk) = SmallDisk::mount("2m") else { return };
    let ballast = disk.path().join("ballast");
    let tenant = Archive::open(disk.path().join("archive.db")).unwrap().tenant(&Namespace::local());
    std::fs::write(&ballast, vec![1; 500_000]).unwrap();
    let mut seed = 0;
    while tenant.store_durably(&[original(&random_bytes(seed, 4_000))]).is_ok() {
        seed += 1;
    }
    let body = agent_request(40);
    let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
    let (sent, refused) = apply_with_store(&request, 12_000, &tenant);
    let sent = sent.unwrap();
    assert!(sent.tokens <= 12_000);
    let text = String::from_utf8(sent.body).unwrap();
    assert_eq!(marker::handles(&text).count(), 0);
    assert!(text.contains("[folded: "), "{text}");
    assert_eq!(refused.len(), 1, "{refused:?}");

    std::fs::remove_file(&ballast).unwrap();
    let (sent, refused) = apply_with_store(&request, 12_000, &tenant);
    let text = String::from_utf8(sent.unwrap().body).unwrap();
    assert_eq!(refused, Vec::<String>::new());
    assert!(marker::handles(&text).count() > 0);
    for handle in marker::handles(&text) {
        assert_eq!(Handle::for_content(&tenant.unfold(handle.as_str()).unwrap().bytes), handle);
    }
}

/// Locked by another process, opened read-only, or truncated while open: no request fails, and no handle is issued.
#[test]
fn failing_archive_fails_no_request() {
    let body = agent_request(40);
    let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
    let check = |name: &str, tenant: &TenantArchive| {
        let (sent, refused) = apply_with_store(&request, 12_000, tenant);
        let text = String::from_utf8(sent.unwrap().body).unwrap();
        assert_eq!(marker::handles(&text).count(), 0, "{name}");
        assert_eq!(refused.len(), 1, "{name}: {refused:?}");
        // If the budget allows the client's own bytes, they are sent.
        let (sent, _) = apply_with_store(&request, 1_000_000, tenant);
        assert_eq!(String::from_utf8(sent.unwrap().body).unwrap(), body, "{name}");
    };

    let temp = TempArchive::new();
    temp.local_tenant().store(&[original(b"something")]).unwrap();
    check("opened for reading", &temp.open_read_only().unwrap().tenant(&Namespace::local()));

    let tenant = temp.local_tenant();
    let other = rusqlite::Connection::open(temp.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    check("locked", &tenant);
    other.execute_batch("ROLLBACK").unwrap();
    let (sent, refused) = apply_with_store(&request, 12_000, &tenant);
    assert!(marker::handles(std::str::from_utf8(&sent.unwrap().body).unwrap()).count() > 0);
    assert_eq!(refused, Vec::<String>::new());
    drop(tenant);

    // Truncated while it is open: every issued handle can be resolved.
    let torn = TempArchive::new();
    let tenant = torn.local_tenant();
    tenant.store(&[original(b"something")]).unwrap();
    for suffix in ["", "-wal"] {
        let file = std::fs::File::options().write(true).open(torn.folder.path().join(format!("archive.db{suffix}")));
        file.unwrap().set_len(0).unwrap();
    }
    let (sent, _) = apply_with_store(&request, 12_000, &tenant);
    for handle in marker::handles(std::str::from_utf8(&sent.unwrap().body).unwrap()) {
        assert_eq!(Handle::for_content(&tenant.unfold(handle.as_str()).unwrap().bytes), handle);
    }
}
