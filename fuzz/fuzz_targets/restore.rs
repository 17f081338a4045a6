//! Restoring hidden rounds in any request never panics and gives a request that can be parsed, whatever the model sent
//! before and the client sends now.
//!
//! The first byte selects the format; zero bytes separate a round of the model, a last round, and the client's request.

#![no_main]

use foldline::wire::{BodyOutcome, BodySplicer, Format, HiddenRound, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [format, rest @ ..] = input else { return };
    let format = Format::all().nth(usize::from(*format) % Format::all().len()).expect("in range");
    let mut texts = rest.splitn(3, |byte| *byte == 0);
    let (Some(first), Some(last), Some(request)) = (texts.next(), texts.next(), texts.next()) else { return };
    let Ok(request) = Request::parse(format, request) else { return };
    let mut splicer = BodySplicer::new(format, "unfold").with_max_rounds(2);
    let mut hidden: Vec<HiddenRound> = Vec::new();
    for round in [first, last] {
        match splicer.push_round(round) {
            Ok(BodyOutcome::Continue(calls)) => hidden.push(calls.hidden_round(&vec!["original"; calls.calls.len()])),
            Ok(BodyOutcome::Finished { finished, .. }) => {
                hidden
                    .extend(finished.mixed_calls.map(|calls| calls.mixed_hidden_round(&vec!["x"; calls.calls.len()])));
                break;
            }
            Err(_) => return,
        }
    }
    for answer in 0..request.conversation().messages.len() {
        for edits in [request.restore_hidden_calls(answer, &hidden), request.restore_hidden_results(&hidden)] {
            if let Some(Ok(body)) = edits.map(|edits| request.splice(&edits)) {
                assert!(Request::parse(format, &body).is_ok(), "{}", String::from_utf8_lossy(&body));
            }
        }
    }
});
