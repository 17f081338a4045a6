//! Checking, repairing and cutting any request never panics. A repaired request has complete pairs and needs no further
//! repair; a permitted cut violates no law; and a request compared with itself has no violations.
//!
//! The first byte selects the format, the second the server.

#![no_main]

use foldline::laws::{
    CutPoints, Law, LawProfile, RewriteContext, ServerKind, check, check_conversation, compare, repair_edits,
};
use foldline::wire::{Format, Request, RequestEdit};
use libfuzzer_sys::fuzz_target;

const PAIRS: [Law; 5] =
    [Law::CallAnswered, Law::ResultHasCall, Law::OneResult, Law::ResultsFirst, Law::ResultAfterCall];

const SERVERS: [ServerKind; 4] =
    [ServerKind::ChatTemplate, ServerKind::LlamaCpp, ServerKind::Vllm, ServerKind::Mistral];

fuzz_target!(|input: &[u8]| {
    let [format, server, body @ ..] = input else { return };
    let format = Format::all().nth(usize::from(*format) % Format::all().len()).expect("in range");
    let Ok(request) = Request::parse(format, body) else { return };
    let profile = LawProfile::for_request(&request);
    let profile = match usize::from(*server) % 5 {
        0 => profile,
        server => profile.served_by(SERVERS[server - 1]),
    };
    check(&request, &profile);
    assert_eq!(compare(&request, &request, &RewriteContext::new(&profile)), []);
    if request.is_continuation() {
        return;
    }

    let Ok(repaired) = request.splice(&repair_edits(&request)) else { return };
    let repaired = Request::parse(format, &repaired).expect("a repaired request can be parsed");
    let violations = check_conversation(repaired.conversation(), &LawProfile::for_model(format, None));
    let violations: Vec<_> = violations.iter().filter(|violation| PAIRS.contains(&violation.law)).collect();
    assert!(violations.is_empty(), "{violations:?}\n{}", repaired.body());
    assert_eq!(repair_edits(&repaired), [], "{}", repaired.body());

    let cuts = CutPoints::for_conversation(repaired.conversation(), &profile);
    let points: Vec<usize> = cuts.points().collect();
    for run in points.windows(2).map(|pair| pair[0]..pair[1]).filter(|run| cuts.may_drop(run.clone())) {
        let edits: Vec<RequestEdit> = run.map(RequestEdit::DropMessage).collect();
        let body = repaired.splice(&edits).expect("permitted drops are valid edits");
        let shorter = Request::parse(format, &body).expect("the shorter request can be parsed");
        let violations =
            compare(&repaired, &shorter, &RewriteContext::new(&profile.clone().without(Law::ReasoningAfterEdit)));
        assert_eq!(violations, [], "{}", repaired.body());
    }
});
