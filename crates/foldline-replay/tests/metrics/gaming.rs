//! Engines that could look better than they are: words without their lines, keeping everything, keeping nothing.

use super::*;

/// Gaming: the identifiers are there, but not in lines of the original.
#[test]
fn keywords_without_lines_score_zero() {
    let case = late_need_case();
    for stuffed in [
        "parse_header 4711",
        "parse_header\n4711\nretry_count\nfn parse_header",
        "[folded: 4 lines of read lib.rs with parse_header, 4711]",
        "    let retry_count = 4711; // fn parse_header(limit: usize) {",
    ] {
        let run = run_scripted(&case, with_file_replaced(stuffed));
        assert_eq!((run.score.needed_context_kept.hits, run.score.needed_context_kept.total), (0, 2), "{stuffed}");
    }
}

/// Gaming: the value of an argument is a bare path, so a bare path in a text must not count as its line.
#[test]
fn bare_argument_values_score_zero() {
    let case = case_from(round_long_before(
        [call("c1", "read", json!({ "path": "src/deep_one.rs" })), result("c1", "ok")],
        call("c2", "read", json!({ "path": "src/deep_one.rs" })),
    ));
    let list = |messages: &[SharedMessage]| {
        let mut now = messages.to_vec();
        if now.len() > 2 {
            now[1] = Arc::new(Message::text(Role::Assistant, "src/deep_one.rs\ndeep_one.rs"));
            now[2] = Arc::new(Message::text(Role::User, "src/deep_one.rs"));
        }
        now
    };
    assert_eq!(run_scripted(&case, unchanged).score.needed_context_kept.ratio(), 1.0);
    assert_eq!(run_scripted(&case, list).score.needed_context_kept.ratio(), 0.0);
}

/// A file that was written by a call has lines, too: they are decoded and counted.
#[test]
fn lines_inside_arguments_count() {
    let case = case_from(round_long_before(
        [call("c1", "write", json!({ "path": "a.rs", "content": FILE_TEXT })), result("c1", "ok")],
        call("c2", "sh", json!({ "cmd": "test parse_header" })),
    ));
    let shorter = |kept: &'static str| {
        move |messages: &[SharedMessage]| {
            let mut now = messages.to_vec();
            if now.len() > 2 {
                let arguments = json!({ "path": "a.rs", "content": kept }).to_string();
                now[1] = Arc::new(Message::new(Role::Assistant, vec![Part::call("c1", "write", arguments)]));
            }
            now
        }
    };
    assert_eq!(
        run_scripted(&case, shorter("[+1]\nfn parse_header(limit: usize) {\n[+2]")).score.needed_context_kept.ratio(),
        1.0
    );
    assert_eq!(run_scripted(&case, shorter("[4 lines with parse_header]")).score.needed_context_kept.ratio(), 0.0);
}

/// Gaming: keeping everything loses nothing and saves nothing.
#[test]
fn no_compaction_reaches_no_oracle_saving() {
    let recordings = (0..3).map(|at| recording(&format!("{at}"), long_session(40)));
    let engines = [
        EngineSpec::Engine(Box::new(baselines::BASELINES[0].clone())),
        EngineSpec::Oracle(OracleSchedule::Profitable),
        EngineSpec::Oracle(OracleSchedule::Optimal),
    ];
    let options = CompareOptions { budget: 100_000, prices: prices(), meter: meter(), min_calls: 1 };
    let comparison = compare_engines(recordings, &CorpusStats::default(), &engines, &options, |_| ()).unwrap();
    let baseline = comparison.summary(1);
    assert_eq!((baseline.cost.value, baseline.needed_context_kept.value), (1.0, 1.0));
    assert_eq!(baseline.optimal_oracle_share.unwrap().value, 0.0);
    let (pays, best) = (comparison.summary(2), comparison.summary(3));
    assert_eq!((pays.needed_context_kept.value, best.needed_context_kept.value), (1.0, 1.0));
    assert!(
        best.cost_with_retries.value <= pays.cost_with_retries.value && pays.cost_with_retries.value < 0.8,
        "{best:?} {pays:?}"
    );
    assert_eq!(best.optimal_oracle_share.unwrap().value, 1.0);
}

#[test]
fn oracle_share_is_absent_without_possible_saving() {
    let short = json!([user("first"), { "role": "assistant", "content": "yes" }]);
    let engines = [EngineSpec::Oracle(OracleSchedule::Profitable)];
    let options = CompareOptions { budget: 100_000, prices: prices(), meter: meter(), min_calls: 1 };
    let one = [recording("one", short)].into_iter();
    let comparison = compare_engines(one, &CorpusStats::default(), &engines, &options, |_| ()).unwrap();
    assert!(comparison.summary(0).paying_oracle_share.is_none());
}
