//! Folds every conversation of a corpus, keeps what is folded in an archive, and unfolds every handle of
//! every rendering: at once, and again in another process.
//!
//!     cargo run --release -p foldline-archive --example exactness -- [CORPUS] [BUDGET]
//!
//! The corpus is the first argument, `FOLDLINE_CORPUS`, or the folder beside the repository. A conversation
//! is folded at every request point, as an agent would have sent it. For the last rendering it is also
//! counted where the text of every part has gone: it stands, a handle gives it back, or it is lost.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a task that can not go on stops, and it prints")]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use foldline::laws::LawProfile;
use foldline::wire::{Format, Request};
use foldline::{
    FoldOptions, FoldSession, Handle, Ledger, Message, Meter, ModelTable, Original, OriginalStore, Part, Prices,
    StoreError,
};
use foldline::{apply, marker};
use foldline_archive::{Archive, Namespace, TenantArchive};
use serde_json::{Value, json};

/// Said to the process that looks again.
const VERIFY_FLAG: &str = "--again";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, archive, list] = &arguments[..]
        && flag == VERIFY_FLAG
    {
        return verify_in_new_process(Path::new(archive), Path::new(list));
    }
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    let named = arguments.first().map(PathBuf::from).or_else(|| std::env::var_os("FOLDLINE_CORPUS").map(PathBuf::from));
    let corpus = named.unwrap_or(beside).join("dev.jsonl.zst");
    let budget: u64 = arguments.get(1).map_or(32_000, |budget| budget.parse().unwrap());
    let Ok(file) = std::fs::File::open(&corpus) else {
        return println!("there is no corpus at {}: nothing was folded", corpus.display());
    };

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive.db");
    let shelf = Archive::open(&path).unwrap().tenant(&Namespace::local());
    let mut rows: BTreeMap<String, FoldTotals> = BTreeMap::new();
    let mut promised: HashMap<Handle, [u8; 32]> = HashMap::new();
    for line in BufReader::new(zstd::stream::read::Decoder::new(file).unwrap()).lines() {
        let record: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let row = rows.entry(record["format"].as_str().unwrap_or("?").to_owned()).or_default();
        fold_conversation(&record, budget, &shelf, row, &mut promised);
    }
    let list = folder.path().join("handles");
    let mut out = BufWriter::new(std::fs::File::create(&list).unwrap());
    for (handle, hash) in &promised {
        writeln!(out, "{handle} {}", blake3::Hash::from_bytes(*hash)).unwrap();
    }
    out.into_inner().unwrap().sync_all().unwrap();
    let stats = shelf.stats().unwrap();
    drop(shelf);
    let answer =
        Command::new(std::env::current_exe().unwrap()).arg(VERIFY_FLAG).arg(&path).arg(&list).output().unwrap();
    print_table(&rows, budget);
    println!("after a restart: {}", String::from_utf8_lossy(&answer.stdout).trim());
    println!(
        "{} originals, {} bytes of text, {} bytes packed, file {}",
        stats.available, stats.bytes, stats.packed_bytes, stats.file_bytes
    );
    let total = sum_totals(&rows);
    assert!(answer.status.success() && total.wrong == 0 && total.lost == 0, "something could not be unfolded");
}

/// What was found, for one source of conversations.
#[derive(Clone, Copy, Default)]
struct FoldTotals {
    conversations: usize,
    folded: usize,
    renderings: usize,
    /// Requests that could not fit.
    unfit_count: usize,
    /// Handles in renderings, each time that one was newly rendered.
    handles: usize,
    /// Of those, the ones that gave the identical bytes.
    exact: usize,
    wrong: usize,
    /// Texts of the last rendering: standing as they were.
    verbatim: usize,
    /// Given back by a handle that stands in the rendering.
    by_handle: usize,
    /// Kept, without a handle in the rendering: what stands there says the same in another form.
    archived_only: usize,
    lost: usize,
}

/// An archive, and what went into it.
struct RecordingArchive<'s> {
    archive: &'s TenantArchive,
    stored: RefCell<HashMap<Handle, [u8; 32]>>,
}

impl OriginalStore for RecordingArchive<'_> {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        let mut kept = self.stored.borrow_mut();
        for original in originals {
            kept.entry(original.handle).or_insert_with(|| *blake3::hash(original.bytes).as_bytes());
        }
        self.archive.store(originals)
    }
}

fn fold_conversation(
    record: &Value,
    budget: u64,
    shelf: &TenantArchive,
    row: &mut FoldTotals,
    promised: &mut HashMap<Handle, [u8; 32]>,
) {
    row.conversations += 1;
    let body = json!({ "model": record["model"], "messages": record["messages"] }).to_string();
    let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
    let messages = &request.conversation().messages;
    let (table, model) = (ModelTable::builtin(), record["model"].as_str());
    let setup = FoldOptions::new(Meter::for_model(table, model), Prices::for_model(table, model), budget)
        .with_rules(&LawProfile::for_model(Format::OpenAiChat, model));

    let keep = RecordingArchive { archive: shelf, stored: RefCell::default() };
    let mut with_handles = setup.clone();
    with_handles.handles = true;
    let mut folder = FoldSession::new(with_handles);
    let mut point = |folder: &mut FoldSession| {
        if folder.plan_request().is_err() {
            row.unfit_count += 1;
            return;
        }
        row.renderings += 1;
        folder.store_originals(&keep).unwrap();
        let from = folder.take_first_changed();
        for message in folder.rendered_messages(from) {
            for_each_text(&message, &mut |text| {
                for handle in marker::handles(text) {
                    // A conversation may quote markers; ours are those that were kept.
                    let Some(&hash) = keep.stored.borrow().get(&handle) else { continue };
                    row.handles += 1;
                    match shelf.unfold(handle.as_str()) {
                        Ok(it) if blake3::hash(&it.bytes) == hash => row.exact += 1,
                        _ => row.wrong += 1,
                    }
                    promised.insert(handle, hash);
                }
            });
        }
    };
    for (at, message) in messages.iter().enumerate() {
        if at > 0 && message.opens_round(Some(&messages[at - 1])) {
            point(&mut folder);
        }
        folder.push(message.clone().into_owned());
    }
    point(&mut folder);

    // The last request, as it would have been sent.
    let keep = RecordingArchive { archive: shelf, stored: RefCell::default() };
    let Ok(applied) = apply(&request, &setup, &Ledger::default(), Some(&keep), &|_| ()) else { return };
    let Some(folded) = &applied.folded else { return };
    row.folded += 1;
    let sent = Request::parse(Format::OpenAiChat, &applied.body).unwrap();
    assert_eq!(sent.conversation().messages, folded.messages(request.conversation()), "the body is the rendering");
    let kept = keep.stored.into_inner();
    let (mut standing, mut by_handle, mut held) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut named = HashSet::new();
    for message in &sent.conversation().messages {
        for_each_text(message, &mut |text| {
            standing.insert(blake3::hash(text.as_bytes()));
            named.extend(marker::handles(text));
        });
    }
    for (handle, hash) in &kept {
        row.handles += 1;
        let Ok(unfolded) = shelf.unfold(handle.as_str()) else {
            row.wrong += 1;
            continue;
        };
        if blake3::hash(&unfolded.bytes) == *hash {
            row.exact += 1;
        } else {
            row.wrong += 1;
        }
        promised.insert(*handle, *hash);
        let found = if named.contains(handle) { &mut by_handle } else { &mut held };
        found.insert(blake3::hash(&unfolded.bytes));
        // A handle of whole rounds gives their messages.
        for message in serde_json::from_slice::<Vec<Message<'_>>>(&unfolded.bytes).unwrap_or_default() {
            for_each_text(&message, &mut |text| {
                found.insert(blake3::hash(text.as_bytes()));
            });
        }
    }
    for message in messages {
        for_each_text(message, &mut |text| {
            let hash = blake3::hash(text.as_bytes());
            match () {
                () if text.is_empty() || standing.contains(&hash) => row.verbatim += 1,
                () if by_handle.contains(&hash) => row.by_handle += 1,
                () if held.contains(&hash) => row.archived_only += 1,
                () => row.lost += 1,
            }
        });
    }
}

fn for_each_text(message: &Message<'_>, each: &mut dyn FnMut(&str)) {
    for part in &message.parts {
        match part {
            Part::Text { text } => each(text),
            Part::Reasoning(it) => each(&it.text),
            Part::ToolCall(it) => each(it.arguments.as_str()),
            Part::ToolResult(it) => it.content.iter().filter_map(Part::as_text).for_each(&mut *each),
            _ => {}
        }
    }
}

/// In a process of its own: every handle that was ever handed out gives the bytes that it was given for.
fn verify_in_new_process(archive: &Path, list: &Path) {
    let shelf = Archive::open(archive).unwrap().tenant(&Namespace::local());
    let (mut exact, mut wrong) = (0, 0);
    for line in std::fs::read_to_string(list).unwrap().lines() {
        let (handle, hash) = line.split_once(' ').unwrap();
        match shelf.unfold(handle) {
            Ok(it) if blake3::hash(&it.bytes).to_hex().as_str() == hash => exact += 1,
            _ => wrong += 1,
        }
    }
    println!("{exact} handles exact, {wrong} not");
    if wrong > 0 {
        std::process::exit(1);
    }
}

fn sum_totals(rows: &BTreeMap<String, FoldTotals>) -> FoldTotals {
    rows.values().fold(FoldTotals::default(), |a, b| FoldTotals {
        conversations: a.conversations + b.conversations,
        folded: a.folded + b.folded,
        renderings: a.renderings + b.renderings,
        unfit_count: a.unfit_count + b.unfit_count,
        handles: a.handles + b.handles,
        exact: a.exact + b.exact,
        wrong: a.wrong + b.wrong,
        verbatim: a.verbatim + b.verbatim,
        by_handle: a.by_handle + b.by_handle,
        archived_only: a.archived_only + b.archived_only,
        lost: a.lost + b.lost,
    })
}

fn print_table(rows: &BTreeMap<String, FoldTotals>, budget: u64) {
    println!("budget {budget}");
    println!(
        "{:<36} {:>6} {:>6} {:>10} {:>7} {:>8} {:>8} {:>5}  | {:>8} {:>9} {:>6} {:>4}",
        "conversations of",
        "number",
        "folded",
        "renderings",
        "refused",
        "handles",
        "exact",
        "wrong",
        "standing",
        "by handle",
        "kept",
        "lost"
    );
    let all = sum_totals(rows);
    for (name, it) in rows.iter().map(|(name, it)| (name.as_str(), it)).chain([("all", &all)]) {
        println!(
            "{name:<36} {:>6} {:>6} {:>10} {:>7} {:>8} {:>8} {:>5}  | {:>8} {:>9} {:>6} {:>4}",
            it.conversations,
            it.folded,
            it.renderings,
            it.unfit_count,
            it.handles,
            it.exact,
            it.wrong,
            it.verbatim,
            it.by_handle,
            it.archived_only,
            it.lost
        );
    }
}
