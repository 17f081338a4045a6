//! Any request is judged, mended and cut without a panic; what was mended has whole pairs and needs no
//! more; what may be cut breaks nothing when it is; and a request owes nothing to itself.
//!
//! The first byte chooses the format, the second the server.

#![no_main]

use foldline::laws::{Cuts, Law, Profile, Rewriting, Server, check, check_conversation, compare, repair_edits};
use foldline::wire::{Edit, Format, Request};
use libfuzzer_sys::fuzz_target;

const PAIRS: [Law; 5] =
    [Law::CallAnswered, Law::ResultHasCall, Law::OneResult, Law::ResultsFirst, Law::ResultBehindCall];

fuzz_target!(|input: &[u8]| {
    let [format, server, body @ ..] = input else { return };
    let format = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic][usize::from(*format) % 3];
    let Ok(request) = Request::parse(format, body) else { return };
    let profile = Profile::of_request(&request);
    let profile = match usize::from(*server) % 5 {
        0 => profile,
        server => profile.served_by([Server::Local, Server::LlamaCpp, Server::Vllm, Server::Mistral][server - 1]),
    };
    check(&request, &profile);
    assert_eq!(compare(&request, &request, &Rewriting::new(&profile)), []);
    if request.is_continuation() {
        return;
    }

    let Ok(mended) = request.splice(&repair_edits(&request)) else { return };
    let mended = Request::parse(format, &mended).expect("a mended request is one");
    let broken = check_conversation(mended.conversation(), &Profile::of(format, None));
    let broken: Vec<_> = broken.iter().filter(|it| PAIRS.contains(&it.law)).collect();
    assert!(broken.is_empty(), "{broken:?}\n{}", mended.body());
    assert_eq!(repair_edits(&mended), [], "{}", mended.body());

    let cuts = Cuts::of(mended.conversation(), &profile);
    let points: Vec<usize> = cuts.points().collect();
    for run in points.windows(2).map(|pair| pair[0]..pair[1]).filter(|run| cuts.may_drop(run.clone())) {
        let edits: Vec<Edit> = run.map(Edit::DropMessage).collect();
        let body = mended.splice(&edits).expect("messages may be dropped");
        let shorter = Request::parse(format, &body).expect("a shorter request is one");
        let broken = compare(&mended, &shorter, &Rewriting::new(&profile.clone().without(Law::ReasoningBound)));
        assert_eq!(broken, [], "{}", mended.body());
    }
});
