//! Folds every conversation of a corpus, stores the originals in an archive, and unfolds every handle of every
//! rendering: immediately, and again in another process.
//!
//!     cargo run --release -p foldline-archive --example exactness -- [CORPUS] [BUDGET]
//!
//! The folder of the corpus is the first argument or `FOLDLINE_CORPUS`. A conversation is folded at every request point, as an agent would have sent it. For the last rendering, the texts of all parts are counted by
//! where they are: verbatim in the request, behind a handle, or lost.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failing example stops, and it prints")]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use foldline::engine::{StoreError, marker};
use foldline::laws::LawProfile;
use foldline::wire::{Format, Request};
use foldline::{
    FoldOptions, FoldSession, Handle, Ledger, Message, Meter, ModelTable, Original, OriginalStore, Part, Prices, apply,
};
use foldline_archive::{Archive, Namespace, TenantArchive};
use serde_json::{Value, json};

/// Flag of the process that verifies the handles again.
const VERIFY_FLAG: &str = "--verify";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, archive, list] = &arguments[..]
        && flag == VERIFY_FLAG
    {
        return verify_in_new_process(Path::new(archive), Path::new(list));
    }
    let named = arguments.first().map(PathBuf::from).or_else(|| std::env::var_os("FOLDLINE_CORPUS").map(PathBuf::from));
    let Some(corpus) = named.map(|folder| folder.join("dev.jsonl.zst")) else {
        return println!("name the folder of the corpus, or set FOLDLINE_CORPUS: nothing was folded");
    };
    let budget: u64 = arguments.get(1).map_or(32_000, |budget| budget.parse().unwrap());
    let Ok(file) = std::fs::File::open(&corpus) else {
        return println!("there is no corpus at {}: nothing was folded", corpus.display());
    };

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive.db");
    let tenant = Archive::open(&path).unwrap().tenant(&Namespace::local());
    let mut rows: BTreeMap<String, FoldTotals> = BTreeMap::new();
    let mut issued: HashMap<Handle, [u8; 32]> = HashMap::new();
    for line in BufReader::new(zstd::stream::read::Decoder::new(file).unwrap()).lines() {
        let record: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let row = rows.entry(record["format"].as_str().unwrap_or("?").to_owned()).or_default();
        fold_conversation(&record, budget, &tenant, row, &mut issued);
    }
    let list = folder.path().join("handles");
    let mut out = BufWriter::new(std::fs::File::create(&list).unwrap());
    for (handle, hash) in &issued {
        writeln!(out, "{handle} {}", blake3::Hash::from_bytes(*hash)).unwrap();
    }
    out.into_inner().unwrap().sync_all().unwrap();
    let stats = tenant.stats().unwrap();
    drop(tenant);
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

/// Totals for one source of conversations.
#[derive(Clone, Copy, Default)]
struct FoldTotals {
    conversations: usize,
    folded: usize,
    renderings: usize,
    /// Requests that could not fit.
    unfit_count: usize,
    /// Handles in renderings, counted whenever one is newly rendered.
    handles: usize,
    /// Handles that returned the identical bytes.
    exact: usize,
    wrong: usize,
    /// Texts of the last rendering that are verbatim in it.
    verbatim: usize,
    /// Texts that a handle in the rendering returns.
    by_handle: usize,
    /// Archived texts without a handle in the rendering, which contains the same content in another form.
    archived_only: usize,
    lost: usize,
}

/// An archive that records everything stored through it.
struct RecordingArchive<'s> {
    archive: &'s TenantArchive,
    stored: RefCell<HashMap<Handle, [u8; 32]>>,
}

impl OriginalStore for RecordingArchive<'_> {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        let mut stored = self.stored.borrow_mut();
        for original in originals {
            stored.entry(original.handle).or_insert_with(|| *blake3::hash(original.bytes).as_bytes());
        }
        self.archive.store(originals)
    }
}

fn fold_conversation(
    record: &Value,
    budget: u64,
    tenant: &TenantArchive,
    row: &mut FoldTotals,
    issued: &mut HashMap<Handle, [u8; 32]>,
) {
    row.conversations += 1;
    let body = json!({ "model": record["model"], "messages": record["messages"] }).to_string();
    let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
    let messages = &request.conversation().messages;
    let (table, model) = (ModelTable::builtin(), record["model"].as_str());
    let options = FoldOptions::new(Meter::for_model(table, model), Prices::for_model(table, model), budget)
        .with_rules(&LawProfile::for_model(Format::OpenAiChat, model));

    let store = RecordingArchive { archive: tenant, stored: RefCell::default() };
    let mut with_handles = options.clone();
    with_handles.handles = true;
    let mut folder = FoldSession::new(with_handles);
    let mut point = |folder: &mut FoldSession| {
        if folder.plan_request().is_err() {
            row.unfit_count += 1;
            return;
        }
        row.renderings += 1;
        folder.store_originals(&store).unwrap();
        let from = folder.take_first_changed();
        for message in folder.rendered_messages(from) {
            for_each_text(&message, &mut |text| {
                for handle in marker::handles(text) {
                    // A conversation may quote markers; only handles that were stored count.
                    let Some(&hash) = store.stored.borrow().get(&handle) else { continue };
                    row.handles += 1;
                    match tenant.unfold(handle.as_str()) {
                        Ok(unfolded) if blake3::hash(&unfolded.bytes) == hash => row.exact += 1,
                        _ => row.wrong += 1,
                    }
                    issued.insert(handle, hash);
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
    let store = RecordingArchive { archive: tenant, stored: RefCell::default() };
    let Ok(applied) = apply(&request, &options, &Ledger::default(), Some(&store), &|_| ()) else { return };
    let Some(folded) = &applied.folded else { return };
    row.folded += 1;
    let sent = Request::parse(Format::OpenAiChat, &applied.body).unwrap();
    assert_eq!(sent.conversation().messages, folded.messages(request.conversation()), "the body is the rendering");
    let stored = store.stored.into_inner();
    let (mut verbatim, mut by_handle, mut archived_only) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut named = HashSet::new();
    for message in &sent.conversation().messages {
        for_each_text(message, &mut |text| {
            verbatim.insert(blake3::hash(text.as_bytes()));
            named.extend(marker::handles(text));
        });
    }
    for (handle, hash) in &stored {
        row.handles += 1;
        let Ok(unfolded) = tenant.unfold(handle.as_str()) else {
            row.wrong += 1;
            continue;
        };
        if blake3::hash(&unfolded.bytes) == *hash {
            row.exact += 1;
        } else {
            row.wrong += 1;
        }
        issued.insert(*handle, *hash);
        let found = if named.contains(handle) { &mut by_handle } else { &mut archived_only };
        found.insert(blake3::hash(&unfolded.bytes));
        // A handle of whole rounds returns their messages.
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
                () if text.is_empty() || verbatim.contains(&hash) => row.verbatim += 1,
                () if by_handle.contains(&hash) => row.by_handle += 1,
                () if archived_only.contains(&hash) => row.archived_only += 1,
                () => row.lost += 1,
            }
        });
    }
}

fn for_each_text(message: &Message<'_>, each: &mut dyn FnMut(&str)) {
    for part in &message.parts {
        match part {
            Part::Text { text } => each(text),
            Part::Reasoning(reasoning) => each(&reasoning.text),
            Part::ToolCall(call) => each(call.arguments.as_str()),
            Part::ToolResult(result) => result.content.iter().filter_map(Part::as_text).for_each(&mut *each),
            _ => {}
        }
    }
}

/// Verifies in a separate process that every issued handle returns its original bytes.
fn verify_in_new_process(archive: &Path, list: &Path) {
    let tenant = Archive::open(archive).unwrap().tenant(&Namespace::local());
    let (mut exact, mut wrong) = (0, 0);
    for line in std::fs::read_to_string(list).unwrap().lines() {
        let (handle, hash) = line.split_once(' ').unwrap();
        match tenant.unfold(handle) {
            Ok(unfolded) if blake3::hash(&unfolded.bytes).to_hex().as_str() == hash => exact += 1,
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
        "{:<36} {:>6} {:>6} {:>10} {:>10} {:>8} {:>8} {:>5}  | {:>8} {:>9} {:>8} {:>4}",
        "conversations of",
        "number",
        "folded",
        "renderings",
        "cannot fit",
        "handles",
        "exact",
        "wrong",
        "verbatim",
        "by handle",
        "archived",
        "lost"
    );
    let all = sum_totals(rows);
    for (name, totals) in rows.iter().map(|(name, totals)| (name.as_str(), totals)).chain([("all", &all)]) {
        println!(
            "{name:<36} {:>6} {:>6} {:>10} {:>10} {:>8} {:>8} {:>5}  | {:>8} {:>9} {:>8} {:>4}",
            totals.conversations,
            totals.folded,
            totals.renderings,
            totals.unfit_count,
            totals.handles,
            totals.exact,
            totals.wrong,
            totals.verbatim,
            totals.by_handle,
            totals.archived_only,
            totals.lost
        );
    }
}
