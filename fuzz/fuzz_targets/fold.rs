//! Folding any request to any budget never panics: it fits or is refused, is the same at every attempt, and every handle
//! in it was stored.
//!
//! The first byte selects the format, the second the budget.

#![no_main]

use std::sync::Mutex;

use foldline::engine::StoreError;
use foldline::wire::{Format, Request};
use foldline::{ErrorKind, FoldOptions, Handle, Ledger, Meter, ModelTable, Original, OriginalStore, Prices, apply};
use libfuzzer_sys::fuzz_target;

#[derive(Default)]
struct MemoryStore(Mutex<Vec<Handle>>);

impl OriginalStore for MemoryStore {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        for original in originals {
            assert_eq!(Handle::for_content(original.bytes), original.handle);
        }
        self.0.lock().expect("not poisoned").extend(originals.iter().map(|original| original.handle));
        Ok(())
    }
}

fuzz_target!(|input: &[u8]| {
    let [format, budget, body @ ..] = input else { return };
    let format = Format::all().nth(usize::from(*format) % Format::all().len()).expect("in range");
    let Ok(request) = Request::parse(format, body) else { return };
    let budget = 16 << (budget % 8);
    let prices = Prices::for_model(ModelTable::builtin(), Some("claude-opus-4-6"));
    let options = FoldOptions::new(Meter::for_byte_estimate(), prices, budget);
    let store = MemoryStore::default();
    let fold = || apply(&request, &options, &Ledger::default(), Some(&store), &|_| ());
    match fold() {
        Ok(folded) => {
            let parsed = Request::parse(format, &folded.body).expect("a folded request can be parsed");
            if folded.folded.is_some() {
                assert!(folded.tokens <= budget, "{} tokens in a budget of {budget}", folded.tokens);
            } else {
                assert_eq!(folded.body, body);
            }
            assert_eq!(fold().expect("as before").body, folded.body);
            drop(parsed);
        }
        Err(error) => {
            let is_expected = matches!(error.kind(), ErrorKind::CannotFit { .. } | ErrorKind::BadEdit);
            assert!(is_expected, "{error}");
        }
    }
});
