//! Engines that would look good without being so: words without their lines, everything, nothing.

use super::*;

/// Gaming: the atoms are there, but not in lines of the original.
#[test]
fn keywords_earn_nothing() {
    let case = late_need();
    for stuffed in [
        "parse_header 4711",
        "parse_header\n4711\nretry_count\nfn parse_header",
        "[folded: 4 lines of read lib.rs with parse_header, 4711]",
        "    let retry_count = 4711; // fn parse_header(limit: usize) {",
    ] {
        let run = run(&case, instead(stuffed));
        assert_eq!((run.score.hard.have, run.score.hard.of), (0, 2), "{stuffed}");
    }
}

/// Gaming: the value of an argument is a bare path, so a bare path in a text must not count as its line.
#[test]
fn a_list_of_arguments_is_not_the_calls() {
    let case = case(long_before(
        [call("c1", "read", json!({ "path": "src/deep_one.rs" })), result("c1", "ok")],
        call("c2", "read", json!({ "path": "src/deep_one.rs" })),
    ));
    let list = |messages: &[Shared]| {
        let mut now = messages.to_vec();
        if now.len() > 2 {
            now[1] = Arc::new(Message::text(Role::Assistant, "src/deep_one.rs\ndeep_one.rs"));
            now[2] = Arc::new(Message::text(Role::User, "src/deep_one.rs"));
        }
        now
    };
    assert_eq!(run(&case, everything).score.hard.ratio(), 1.0);
    assert_eq!(run(&case, list).score.hard.ratio(), 0.0);
}

/// A file that was written by a call has lines, too: they count where they are decoded.
#[test]
fn lines_inside_arguments_count() {
    let case = case(long_before(
        [call("c1", "write", json!({ "path": "a.rs", "content": FILE })), result("c1", "ok")],
        call("c2", "sh", json!({ "cmd": "test parse_header" })),
    ));
    let shorter = |kept: &'static str| {
        move |messages: &[Shared]| {
            let mut now = messages.to_vec();
            if now.len() > 2 {
                let arguments = json!({ "path": "a.rs", "content": kept }).to_string();
                now[1] = Arc::new(Message::new(Role::Assistant, vec![Part::call("c1", "write", arguments)]));
            }
            now
        }
    };
    assert_eq!(run(&case, shorter("[+1]\nfn parse_header(limit: usize) {\n[+2]")).score.hard.ratio(), 1.0);
    assert_eq!(run(&case, shorter("[4 lines with parse_header]")).score.hard.ratio(), 0.0);
}

/// Gaming: who keeps everything loses nothing, and saves nothing.
#[test]
fn keeping_everything_closes_no_gap() {
    let recordings = (0..3).map(|at| recording(&format!("{at}"), long_session(40)));
    let contestants = [
        Contestant::Engine(Box::new(policy::ALL[0].clone())),
        Contestant::Clairvoyant(Foresight::WhenItPays),
        Contestant::Clairvoyant(Foresight::BestSchedule),
    ];
    let options = Options { budget: 100_000, prices: prices(), meter: meter(), calls: 1 };
    let comparison = compare(recordings, &Survey::default(), &contestants, &options, |_| ()).unwrap();
    let everything = comparison.summary(1);
    assert_eq!((everything.bill.value, everything.hard.value), (1.0, 1.0));
    assert_eq!(everything.gap_closed.unwrap().value, 0.0);
    let (pays, best) = (comparison.summary(2), comparison.summary(3));
    assert_eq!((pays.hard.value, best.hard.value), (1.0, 1.0));
    assert!(best.repaired.value <= pays.repaired.value && pays.repaired.value < 0.8, "{best:?} {pays:?}");
    assert_eq!(best.gap_closed.unwrap().value, 1.0);
}

#[test]
fn where_nothing_can_be_gained_there_is_no_gap() {
    let short = json!([user("first"), { "role": "assistant", "content": "yes" }]);
    let contestants = [Contestant::Clairvoyant(Foresight::WhenItPays)];
    let options = Options { budget: 100_000, prices: prices(), meter: meter(), calls: 1 };
    let one = [recording("one", short)].into_iter();
    let comparison = compare(one, &Survey::default(), &contestants, &options, |_| ()).unwrap();
    assert!(comparison.summary(0).gap_closed_paying.is_none());
}
