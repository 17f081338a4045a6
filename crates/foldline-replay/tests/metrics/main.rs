//! Tests of each metric on a small conversation with a known answer, and attempts to game it.

mod engines;
mod gaming;

use std::sync::Arc;

use foldline::models::PriceTable;
use foldline::transcript::{RecordedSession, TranscriptReader};
use foldline::{Handle, Message, Meter, ModelTable, Part, Prices, Role};
use foldline_replay::{
    CompareOptions, CorpusStats, EngineError, EngineSession, EngineSetup, EngineSpec, OracleSchedule, RenderingDelta,
    ReplayCase, ReplayEngine, ReplayReport, ReplayRun, SharedMessage, baselines, compare_engines, replay,
};
use serde_json::json;

/// An engine that is a function of the messages so far.
struct ScriptedEngine<F>(F);

struct ScriptedSession<F> {
    render: F,
    messages: Vec<SharedMessage>,
    sent: Vec<SharedMessage>,
}

impl<F: Fn(&[SharedMessage]) -> Vec<SharedMessage> + Clone + Send + Sync + 'static> ReplayEngine for ScriptedEngine<F> {
    fn name(&self) -> &str {
        "scripted"
    }

    fn open(&self, _: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
        Ok(Box::new(ScriptedSession { render: self.0.clone(), messages: Vec::new(), sent: Vec::new() }))
    }
}

impl<F: Fn(&[SharedMessage]) -> Vec<SharedMessage>> EngineSession for ScriptedSession<F> {
    fn push(&mut self, messages: &[SharedMessage]) -> Result<(), EngineError> {
        self.messages.extend_from_slice(messages);
        Ok(())
    }

    fn request(&mut self) -> Result<RenderingDelta, EngineError> {
        let now = (self.render)(&self.messages);
        let same = now.iter().zip(&self.sent).take_while(|(now, sent)| now == sent).count();
        let is_crease = same < self.sent.len();
        let changed = now.iter().cloned().enumerate().skip(same).collect();
        self.sent = now.clone();
        Ok(RenderingDelta { changed, len: now.len(), is_crease })
    }
}

fn meter() -> Meter {
    Meter::for_model(ModelTable::builtin(), Some("gpt-4o"))
}

fn prices() -> Prices {
    PriceTable::builtin().get("anthropic-5m").expect("built-in table")
}

/// Builds a recording of chat messages.
fn recording(id: &str, messages: serde_json::Value) -> RecordedSession {
    let line = json!({ "id": id, "source": "test", "messages": messages }).to_string();
    let mut reader = TranscriptReader::new("test", line.as_bytes()).expect("a valid recording");
    reader.next().expect("one recording").expect("readable")
}

fn case_from(messages: serde_json::Value) -> ReplayCase {
    ReplayCase::new(recording("one", messages), &CorpusStats::default(), &meter())
}

fn run_scripted(
    case: &ReplayCase,
    render: impl Fn(&[SharedMessage]) -> Vec<SharedMessage> + Clone + Send + Sync + 'static,
) -> ReplayRun {
    replay(case, &ScriptedEngine(render), 100_000, prices()).expect("the engine renders")
}

fn user(text: &str) -> serde_json::Value {
    json!({ "role": "user", "content": text })
}

fn call(id: &str, name: &str, arguments: serde_json::Value) -> serde_json::Value {
    let function = json!({ "name": name, "arguments": arguments.to_string() });
    json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": id, "type": "function", "function": function }] })
}

fn result(id: &str, text: &str) -> serde_json::Value {
    json!({ "role": "tool", "tool_call_id": id, "content": text })
}

/// Builds a conversation with a round, and a call when that round is no longer recent.
fn round_long_before(round: [serde_json::Value; 2], later: serde_json::Value) -> serde_json::Value {
    let between = ["1", "2", "3", "4", "5", "6"].map(user);
    [user("go")].into_iter().chain(round).chain(between).chain([later, result("c2", "ok")]).collect()
}

const FILE_TEXT: &str = "use std::fmt;\nfn parse_header(limit: usize) {\n    let retry_count = 4711;\n}";

/// Builds a case in which a file is read, three idle rounds follow, and then an action needs `parse_header` and `4711`, which
/// appear only in the file, and `idle_three`, which is recent.
fn late_need_case() -> ReplayCase {
    case_from(json!([
        user("look at it"),
        call("c1", "read", json!({ "path": "lib.rs" })),
        result("c1", FILE_TEXT),
        call("c2", "sh", json!({ "cmd": "idle_one" })),
        result("c2", "ok"),
        call("c3", "sh", json!({ "cmd": "idle_two" })),
        result("c3", "ok"),
        call("c4", "sh", json!({ "cmd": "idle_three" })),
        result("c4", "ok"),
        call("c5", "sh", json!({ "cmd": "rename parse_header 4711 and idle_three" })),
        result("c5", "ok"),
    ]))
}

/// Renders all messages, with another text in place of the file.
fn with_file_replaced(
    text: &'static str,
) -> impl Fn(&[SharedMessage]) -> Vec<SharedMessage> + Clone + Send + Sync + 'static {
    move |messages| {
        let mut now = messages.to_vec();
        if now.len() > 8 {
            now[2] = Arc::new(Message::new(Role::Tool, vec![Part::result("c1", text)]));
        }
        now
    }
}

fn unchanged(messages: &[SharedMessage]) -> Vec<SharedMessage> {
    messages.to_vec()
}

#[test]
fn tokens_and_cost_follow_the_common_prefix() {
    let case = late_need_case();
    let sizes: Vec<u64> = case.messages.iter().map(|message| meter().message(message)).collect();
    let sent = |end: usize| meter().request_overhead() + sizes[..end].iter().sum::<u64>();
    let full = run_scripted(&case, unchanged).score;
    assert_eq!(full.calls, 5);
    assert_eq!(full.tokens, sent(1) + sent(3) + sent(5) + sent(7) + sent(9));
    assert_eq!(full.usage.read, sent(1) + sent(3) + sent(5) + sent(7));
    assert_eq!(full.usage.written, sent(9));
    assert_eq!((full.creases, full.missing_context_ratio()), (0, 0.0));

    // The file is removed before the last call: everything after it is written again, the part of the message
    // before it is read.
    let cut = run_scripted(&case, with_file_replaced("[folded]")).score;
    assert_eq!(cut.creases, 1);
    assert_eq!(
        cut.tokens,
        full.tokens - sizes[2] + meter().message(&Message::new(Role::Tool, vec![Part::result("c1", "[folded]")]))
    );
    let last = cut.usage.read - (sent(1) + sent(3) + sent(5));
    assert!((sent(2)..sent(3)).contains(&last), "{last}");
}

#[test]
fn context_kept_is_the_share_of_kept_identifiers() {
    let case = late_need_case();
    let need: Vec<(&str, bool)> =
        case.calls[4].needs.iter().map(|need| (case.identifier_text(need), need.is_distant)).collect();
    assert_eq!(need.len(), 3);
    assert!(need.contains(&("parse_header", true)) && need.contains(&("4711", true)));
    assert!(need.contains(&("idle_three", false)));

    let removed = run_scripted(&case, with_file_replaced("[folded]"));
    assert_eq!((removed.score.context_kept.hits, removed.score.context_kept.total), (1, 3));
    assert_eq!((removed.score.needed_context_kept.hits, removed.score.needed_context_kept.total), (0, 2));
    assert_eq!((removed.score.complete_actions.hits, removed.score.complete_actions.total), (4, 5));

    let excerpt = run_scripted(&case, with_file_replaced("fn parse_header(limit: usize) {\n[+2]"));
    assert_eq!((excerpt.score.needed_context_kept.hits, excerpt.score.needed_context_kept.total), (1, 2));
    let missing: Vec<_> =
        excerpt.missing_context.iter().map(|it| (it.identifier.as_str(), it.position.message, it.age)).collect();
    assert_eq!(missing, [("4711", 2, 3)]);
    assert_eq!(excerpt.missing_context[0].tool, "read");
}

/// Builds a session in which each round reads a file of which only a name is needed, much later.
fn long_session(rounds: usize) -> serde_json::Value {
    let mut messages = vec![user("go")];
    for round in 0..rounds {
        let id = format!("c{round}");
        let needed = if round >= 20 { format!("use value_{}_x", round - 20) } else { "nothing".to_owned() };
        messages.push(call(&id, "sh", json!({ "cmd": needed })));
        let noise = format!("some words of file {round} that are not needed again\n").repeat(30);
        messages.push(result(&id, &format!("{noise}fn value_{round}_x() {{}}\n{noise}")));
    }
    json!(messages)
}

#[test]
fn missing_context_costs_a_round_trip() {
    let case = late_need_case();
    let run = run_scripted(&case, with_file_replaced("[folded]"));
    let last = run.points.last().unwrap().tokens;
    let file = meter().part(&Part::result("c1", FILE_TEXT));
    assert_eq!(run.score.retry_usage.read, last);
    assert_eq!(run.score.retry_usage.written, file);
    assert_eq!(run.score.retry_usage.output, 60);
    let retry_cost = 0.1 * last as f64 + 1.25 * file as f64 + 5.0 * 60.0;
    assert!((run.score.cost_with_retries(&prices()) - run.score.cost(&prices()) - retry_cost).abs() < 1e-6);
}

#[test]
fn edit_needs_contiguous_old_text() {
    let edit = json!({ "file_path": "lib.rs", "old_string": "    let retry_count = 4711;\n}", "new_string": "}" });
    let case = case_from(json!([
        user("look at it"),
        call("c1", "read", json!({ "path": "lib.rs" })),
        result("c1", FILE_TEXT),
        call("c2", "Edit", edit),
        result("c2", "ok"),
    ]));
    let with = |text: &'static str| {
        move |messages: &[SharedMessage]| {
            let mut now = messages.to_vec();
            if now.len() > 2 {
                now[2] = Arc::new(Message::new(Role::Tool, vec![Part::result("c1", text)]));
            }
            now
        }
    };
    let share = |run: ReplayRun| (run.score.edits_that_apply.hits, run.score.edits_that_apply.total);
    assert_eq!(share(run_scripted(&case, unchanged)), (1, 1));
    assert_eq!(share(run_scripted(&case, with("[+2]\n    let retry_count = 4711;\n}"))), (1, 1));
    assert_eq!(share(run_scripted(&case, with("    let retry_count = 4711;\n[+1]\n}"))), (0, 1));
    let folded = run_scripted(&case, with("[folded]"));
    assert_eq!(share(folded.clone()), (0, 1));
    // The edit fails: its action misses context, and the file is fetched in another round trip.
    assert_eq!((folded.score.complete_actions.hits, folded.score.complete_actions.total), (1, 2));
    assert_eq!(folded.score.retry_usage.written, meter().part(&Part::result("c1", FILE_TEXT)));
    assert_eq!(folded.score.retry_usage.output, 60);
}

/// A file that was folded and is read again, unchanged, is charged with the recorded output of that action.
#[test]
fn repeated_read_of_folded_content_is_charged() {
    let file = "some words of a file that is read twice\n".repeat(20);
    let read = |id: &str| [call(id, "read", json!({ "path": "lib.rs" })), result(id, &file)];
    let messages: Vec<_> = [user("go")].into_iter().chain(read("c1")).chain(read("c2")).chain(read("c3")).collect();
    let case = case_from(json!(messages));
    let fold_first = |messages: &[SharedMessage]| {
        let mut now = messages.to_vec();
        if now.len() == 3 {
            now[2] = Arc::new(Message::new(Role::Tool, vec![Part::result("c1", "[folded]")]));
        }
        now
    };
    assert_eq!(run_scripted(&case, unchanged).score.repeated_reads, 0);
    let run = run_scripted(&case, fold_first);
    assert_eq!((run.score.repeated_reads, run.score.missing_context_ratio()), (1, 0.0));
    assert_eq!(run.score.retry_usage.output, case.calls[1].output_tokens);
    assert_eq!(run.score.retry_usage.written, meter().part(&Part::result("c1", file.clone())));
    assert_eq!(run.score.retry_usage.read, run.points[1].tokens);
}

/// Names of code that are not snake or camel case are needed context, English in the same form is not.
#[test]
fn kebab_case_and_constants_are_needed_context() {
    let file = "the well-known --set-metadata of <b class=\"items-center\"> and 'items-center'\nIMPORTANT: RTLDX";
    let later = "a well-known, IMPORTANT call: --set-metadata items-center RTLDX";
    let session = round_long_before(
        [call("c1", "read", json!({ "path": "lib.rs" })), result("c1", file)],
        call("c2", "sh", json!({ "cmd": later })),
    );
    let case = case_from(session);
    let mut needs: Vec<&str> = case.calls[1].needs.iter().map(|need| case.identifier_text(need)).collect();
    needs.sort_unstable();
    assert_eq!(needs, ["--set-metadata", "RTLDX", "items-center"]);
}

/// Truncation at equal tokens refuses what the engine refused: it must not look better by exceeding the window.
#[test]
fn truncation_follows_tokens_and_refusals() {
    let engines = [
        EngineSpec::Engine(Box::new(foldline_replay::FoldlineEngine::new(foldline::Policy::balanced()))),
        EngineSpec::EqualTokens(0, baselines::DropUnit::OldestRounds),
    ];
    let options = CompareOptions { budget: 3_000, prices: prices(), meter: meter(), min_calls: 1 };
    let one = std::iter::once(recording("one", long_session(40)));
    let comparison = compare_engines(one, &CorpusStats::default(), &engines, &options, |_| ()).unwrap();
    let [ours, truncated] = [1, 2].map(|row| &comparison.outcomes[0].runs[row]);
    assert_eq!(ours.points.len(), truncated.points.len());
    assert_eq!(ours.score.refused, truncated.score.refused);
    for (ours, truncated) in ours.points.iter().zip(&truncated.points) {
        assert!(truncated.tokens <= ours.tokens, "{ours:?} {truncated:?}");
    }
}

#[test]
fn instructions_must_be_verbatim() {
    let case = case_from(json!([
        { "role": "system", "content": "Be brief." },
        user("first"),
        { "role": "assistant", "content": "yes" },
        user("second"),
        { "role": "assistant", "content": "done" },
    ]));
    assert_eq!(run_scripted(&case, unchanged).score.instructions_kept.ratio(), 1.0);
    let reworded = |messages: &[SharedMessage]| {
        let mut now = messages.to_vec();
        now[1] = Arc::new(Message::text(Role::User, "first, in other words"));
        now
    };
    let share = run_scripted(&case, reworded).score.instructions_kept;
    assert_eq!((share.hits, share.total), (3, 5));
}

#[test]
fn fits_counts_calls_within_each_window() {
    let case = case_from(long_session(40));
    let full = run_scripted(&case, unchanged).score;
    let newest =
        run_scripted(&case, |messages: &[SharedMessage]| messages[messages.len().saturating_sub(2)..].to_vec()).score;
    assert!(full.fits[0] < full.calls && full.fits[4] == full.calls, "{full:?}");
    assert_eq!(newest.fits, [newest.calls; 5]);
}

#[test]
fn artifact_trail_is_read_from_the_rendering() {
    let case = case_from(json!([
        user("go"),
        call("c1", "Read", json!({ "file_path": "a.rs" })),
        result("c1", "fn a() {}"),
        call("c2", "Write", json!({ "file_path": "b.rs", "content": "fn b() {}" })),
        result("c2", "ok"),
        call("c3", "Bash", json!({ "command": "cargo test" })),
        result("c3", "error: oh\ntest result: FAILED. 1 passed; 1 failed"),
        call("c4", "Bash", json!({ "command": "true" })),
        result("c4", ""),
    ]));
    let full = run_scripted(&case, unchanged).score;
    assert_eq!((full.trail_recall.hits, full.trail_recall.total), (4, 4));
    let without_tests = |messages: &[SharedMessage]| {
        let mut now = messages.to_vec();
        if now.len() > 6 {
            now[6] = Arc::new(Message::new(Role::Tool, vec![Part::result("c3", "test result: ok. 9 passed")]));
        }
        now
    };
    let wrong = run_scripted(&case, without_tests).score;
    assert_eq!((wrong.trail_recall.hits, wrong.trail_recall.total), (2, 4));
    assert_eq!((wrong.trail_precision.hits, wrong.trail_precision.total), (2, 3));
}

/// Identifiers of every conversation are no evidence.
#[test]
fn common_identifiers_are_excluded() {
    let session = |at: usize| {
        let own = format!("own_{at}_name");
        json!([
            user("go"),
            call("c1", "sh", json!({ "cmd": format!("common_name {own}") })),
            result("c1", "ok"),
            call("c2", "sh", json!({ "cmd": format!("common_name {own}") })),
            result("c2", "ok"),
        ])
    };
    let corpus = CorpusStats::from_recordings((0..20).map(|at| recording(&format!("{at}"), session(at))));
    let case = ReplayCase::new(recording("3", session(3)), &corpus, &meter());
    let needs: Vec<&str> = case.calls[1].needs.iter().map(|need| case.identifier_text(need)).collect();
    assert_eq!(needs, ["own_3_name"]);
}

/// Context for another conversation's actions: an engine that knows what this one needs is no better
/// there than a random drop.
#[test]
fn oracle_gains_nothing_on_foreign_actions() {
    // All conversations use the same thousand names, each at a different time.
    let session = |at: usize| {
        let mut messages = vec![user("go")];
        for round in 0..60_usize {
            let id = format!("c{round}");
            let needed = (round * 7 + at * 13) % round.max(1);
            messages.push(call(&id, "sh", json!({ "cmd": format!("use name_{needed}_a") })));
            let lines: Vec<String> =
                (0..8).map(|line| format!("let name_{}_{} = 1;", round, ["a", "b", "c", "d"][line % 4])).collect();
            messages.push(result(&id, &format!("{}\n{}", lines.join("\n"), "words and words ".repeat(20))));
        }
        recording(&format!("{at}"), json!(messages))
    };
    let corpus = CorpusStats::from_recordings((0..8).map(session));
    let engines =
        [EngineSpec::Oracle(OracleSchedule::Profitable), EngineSpec::EqualTokens(0, baselines::DropUnit::Results)];
    let options = CompareOptions { budget: 100_000, prices: prices(), meter: meter(), min_calls: 1 };
    let comparison = compare_engines((0..8).map(session), &corpus, &engines, &options, |_| ()).unwrap();
    let (oracle, random) = (comparison.summary(1), comparison.summary(2));
    assert!(oracle.needed_context_kept.value > random.needed_context_kept.value + 0.2, "{oracle:?} {random:?}");
    assert!(oracle.foreign.value < random.foreign.value + 0.2, "{oracle:?} {random:?}");
}

/// The page is self-contained, and text of a recording cannot break out of it.
#[test]
fn html_report_is_self_contained_and_escaped() {
    let session = round_long_before(
        [
            call("c1", "read", json!({ "path": "lib.rs" })),
            result("c1", "</script><!--<script><script>alert_me(1)</script>"),
        ],
        call("c2", "sh", json!({ "cmd": "alert_me" })),
    );
    let engines = [EngineSpec::Engine(Box::new(ScriptedEngine(with_file_replaced("[folded]"))))];
    let options = CompareOptions { budget: 100_000, prices: prices(), meter: meter(), min_calls: 1 };
    let mut recording = recording("one", session);
    recording.project = Some("importer".into());
    recording.date = Some("2026-11-02".into());
    let recordings = std::iter::once(recording);
    let comparison = compare_engines(recordings, &CorpusStats::default(), &engines, &options, |_| ()).unwrap();
    let report = ReplayReport::new(&comparison, 1, "a set", "anthropic-5m", "today", 100_000);
    assert_eq!(report.sessions[0].missing_context[0].identifier, "alert_me");
    let origin = &report.sessions[0].origin;
    assert_eq!((origin.project.as_deref(), origin.date.as_deref()), (Some("importer"), Some("2026-11-02")));
    assert!(origin.title.is_some(), "the first words of the task");
    let page = report.to_html();
    assert_eq!(page.matches("</script>").count(), 2, "the two elements of the page itself");
    assert!(!page.contains("<!--<script>"), "it would hide the end of the element");
    assert!(page.contains("id=\"privacy\"") && page.contains("href=\"#glossary\"") && page.contains("id=\"glossary\""));
    assert!(!page.contains("/*DATA*/") && !page.contains("http-equiv") && !page.contains("src=\"http"));
    let parsed: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(parsed["rows"][1]["name"], "scripted");
}

/// The report has the palette of the dashboard: both begin with the same declarations.
#[test]
fn html_report_has_the_palette_of_the_dashboard() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap();
    let dashboard = read("../foldline-server/dashboard/src/app.css");
    let palette = dashboard.split("* {").next().unwrap();
    assert!(palette.contains("--accent") && palette.contains("prefers-color-scheme: dark"));
    assert!(read("src/report/page.css").starts_with(palette));
}

/// The same tokens have other costs at other prices.
#[test]
fn costs_follow_the_price_table() {
    let recordings = std::iter::once(recording("one", long_session(30)));
    let engines = [EngineSpec::Engine(Box::new(baselines::BASELINES[1].clone()))];
    let options = CompareOptions { budget: 100_000, prices: prices(), meter: meter(), min_calls: 1 };
    let comparison = compare_engines(recordings, &CorpusStats::default(), &engines, &options, |_| ()).unwrap();
    let report = ReplayReport::new(&comparison, 1, "a set", "anthropic-5m", "today", 100_000);
    let names: Vec<&str> = report.costs.iter().map(|costs| costs.price_table.as_str()).collect();
    assert!(names.contains(&"local") && names.contains(&"anthropic-5m") && names.len() >= 8, "{names:?}");
    let (full, ours) = (&comparison.outcomes[0].runs[0].score, &comparison.outcomes[0].runs[1].score);
    for costs in &report.costs {
        let cost = |usage: foldline_replay::TokenSpend| {
            usage.read as f64 * costs.prices.read
                + usage.written as f64 * costs.prices.write
                + usage.output as f64 * costs.prices.output
        };
        let [relative, with_retries] = costs.rows[1];
        assert!((relative - cost(ours.usage) / cost(full.usage)).abs() < 1e-9, "{}", costs.price_table);
        let all = cost(ours.usage) + cost(ours.retry_usage);
        assert!((with_retries - all / cost(full.usage)).abs() < 1e-9, "{}", costs.price_table);
        assert_eq!(costs.rows[0], [1.0, 1.0]);
    }
}

/// Intervals are paired: an engine that saves the same share everywhere has a zero-width interval, however different the
/// conversations are.
#[test]
fn intervals_are_paired_over_conversations() {
    let recordings = [10, 20, 40, 80].map(|rounds| recording(&format!("{rounds}"), long_session(rounds)));
    let engines = [EngineSpec::Engine(Box::new(baselines::BASELINES[0].clone()))];
    let options = CompareOptions { budget: 1_000_000, prices: prices(), meter: meter(), min_calls: 1 };
    let comparison =
        compare_engines(recordings.into_iter(), &CorpusStats::default(), &engines, &options, |_| ()).unwrap();
    let cost = comparison.summary(1).cost;
    assert_eq!((cost.low, cost.value, cost.high), (1.0, 1.0, 1.0));
}
