//! Each metric on a conversation that is small enough to know the answer, and attempts to game it.

mod engines;
mod gaming;

use std::sync::Arc;

use foldline::transcript::{RecordedSession, TranscriptReader};
use foldline::{Handle, Message, Meter, ModelTable, Part, PriceTable, Prices, Role};
use foldline_replay::{
    Case, Contestant, Delta, Engine, Foresight, Maker, Options, Refusal, Report, Run, Setup, Shared, Survey, compare,
    policy, replay,
};
use serde_json::json;

/// An engine that is a function of the messages so far.
struct Scripted<F>(F);

struct Running<F> {
    render: F,
    messages: Vec<Shared>,
    sent: Vec<Shared>,
}

impl<F: Fn(&[Shared]) -> Vec<Shared> + Clone + Send + Sync + 'static> Maker for Scripted<F> {
    fn name(&self) -> &str {
        "scripted"
    }

    fn open(&self, _: &Setup) -> Result<Box<dyn Engine>, Refusal> {
        Ok(Box::new(Running { render: self.0.clone(), messages: Vec::new(), sent: Vec::new() }))
    }
}

impl<F: Fn(&[Shared]) -> Vec<Shared>> Engine for Running<F> {
    fn push(&mut self, messages: &[Shared]) -> Result<(), Refusal> {
        self.messages.extend_from_slice(messages);
        Ok(())
    }

    fn request(&mut self) -> Result<Delta, Refusal> {
        let now = (self.render)(&self.messages);
        let same = now.iter().zip(&self.sent).take_while(|(now, sent)| now == sent).count();
        let creased = same < self.sent.len();
        let set = now.iter().cloned().enumerate().skip(same).collect();
        self.sent = now.clone();
        Ok(Delta { set, len: now.len(), creased })
    }
}

fn meter() -> Meter {
    Meter::for_model(ModelTable::builtin(), Some("gpt-4o"))
}

fn prices() -> Prices {
    PriceTable::builtin().get("anthropic-5m").expect("it is built in")
}

/// A recording of chat messages.
fn recording(id: &str, messages: serde_json::Value) -> RecordedSession {
    let line = json!({ "id": id, "source": "test", "messages": messages }).to_string();
    let mut reader = TranscriptReader::new("test", line.as_bytes()).expect("it is a recording");
    reader.next().expect("there is one").expect("it can be read")
}

fn case(messages: serde_json::Value) -> Case {
    Case::new(recording("one", messages), &Survey::default(), &meter())
}

fn run(case: &Case, render: impl Fn(&[Shared]) -> Vec<Shared> + Clone + Send + Sync + 'static) -> Run {
    replay(case, &Scripted(render), 100_000, prices()).expect("the engine renders")
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

/// A round, and a call when it has long been no newest round any more.
fn long_before(round: [serde_json::Value; 2], later: serde_json::Value) -> serde_json::Value {
    let between = ["1", "2", "3", "4", "5", "6"].map(user);
    [user("go")].into_iter().chain(round).chain(between).chain([later, result("c2", "ok")]).collect()
}

const FILE: &str = "use std::fmt;\nfn parse_header(limit: usize) {\n    let retry_count = 4711;\n}";

/// The file is read, three idle rounds follow, then an action needs `parse_header` and `4711`, which
/// stand in the file alone, and `idle_three`, which is recent.
fn late_need() -> Case {
    case(json!([
        user("look at it"),
        call("c1", "read", json!({ "path": "lib.rs" })),
        result("c1", FILE),
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

/// The rendering with another text in place of the file.
fn instead(text: &'static str) -> impl Fn(&[Shared]) -> Vec<Shared> + Clone + Send + Sync + 'static {
    move |messages| {
        let mut now = messages.to_vec();
        if now.len() > 8 {
            now[2] = Arc::new(Message::new(Role::Tool, vec![Part::result("c1", text)]));
        }
        now
    }
}

fn everything(messages: &[Shared]) -> Vec<Shared> {
    messages.to_vec()
}

#[test]
fn tokens_and_the_bill_follow_the_common_prefix() {
    let case = late_need();
    let sizes: Vec<u64> = case.messages.iter().map(|message| meter().message(message)).collect();
    let sent = |end: usize| meter().request_overhead() + sizes[..end].iter().sum::<u64>();
    let full = run(&case, everything).score;
    assert_eq!(full.calls, 5);
    assert_eq!(full.tokens, sent(1) + sent(3) + sent(5) + sent(7) + sent(9));
    assert_eq!(full.spent.read, sent(1) + sent(3) + sent(5) + sent(7));
    assert_eq!(full.spent.written, sent(9));
    assert_eq!((full.creases, full.missteps()), (0, 0.0));

    // The file goes away before the last call: all behind it is written anew, the part of the message
    // in front of it is read.
    let cut = run(&case, instead("[folded]")).score;
    assert_eq!(cut.creases, 1);
    assert_eq!(
        cut.tokens,
        full.tokens - sizes[2] + meter().message(&Message::new(Role::Tool, vec![Part::result("c1", "[folded]")]))
    );
    let last = cut.spent.read - (sent(1) + sent(3) + sent(5));
    assert!((sent(2)..sent(3)).contains(&last), "{last}");
}

#[test]
fn support_is_the_share_of_atoms_that_still_stand() {
    let case = late_need();
    let need: Vec<(&str, bool)> = case.calls[4].needs.iter().map(|need| (case.atom(need), need.hard)).collect();
    assert_eq!(need.len(), 3);
    assert!(need.contains(&("parse_header", true)) && need.contains(&("4711", true)));
    assert!(need.contains(&("idle_three", false)));

    let gone = run(&case, instead("[folded]"));
    assert_eq!((gone.score.support.have, gone.score.support.of), (1, 3));
    assert_eq!((gone.score.hard.have, gone.score.hard.of), (0, 2));
    assert_eq!((gone.score.sure.have, gone.score.sure.of), (4, 5));

    let excerpt = run(&case, instead("fn parse_header(limit: usize) {\n[+2]"));
    assert_eq!((excerpt.score.hard.have, excerpt.score.hard.of), (1, 2));
    let missing: Vec<_> = excerpt.missteps.iter().map(|it| (it.atom.as_str(), it.place.message, it.age)).collect();
    assert_eq!(missing, [("4711", 2, 3)]);
    assert_eq!(excerpt.missteps[0].tool, "read");
}

/// A session in which each round reads a file of which nothing is needed but a name, much later.
fn long_session(rounds: usize) -> serde_json::Value {
    let mut messages = vec![user("go")];
    for round in 0..rounds {
        let id = format!("c{round}");
        let needed = if round >= 20 { format!("use value_{}_x", round - 20) } else { "nothing".to_owned() };
        messages.push(call(&id, "sh", json!({ "cmd": needed })));
        let noise = format!("some words of file {round} that nobody needs again\n").repeat(30);
        messages.push(result(&id, &format!("{noise}fn value_{round}_x() {{}}\n{noise}")));
    }
    json!(messages)
}

#[test]
fn a_misstep_costs_a_round_trip() {
    let case = late_need();
    let run = run(&case, instead("[folded]"));
    let last = run.points.last().unwrap().tokens;
    let file = meter().part(&Part::result("c1", FILE));
    assert_eq!(run.score.repair.read, last);
    assert_eq!(run.score.repair.written, file);
    assert_eq!(run.score.repair.output, 60);
    let repair = 0.1 * last as f64 + 1.25 * file as f64 + 5.0 * 60.0;
    assert!((run.score.repaired(&prices()) - run.score.bill(&prices()) - repair).abs() < 1e-6);
}

#[test]
fn an_edit_needs_its_old_text_in_one_piece() {
    let edit = json!({ "file_path": "lib.rs", "old_string": "    let retry_count = 4711;\n}", "new_string": "}" });
    let case = case(json!([
        user("look at it"),
        call("c1", "read", json!({ "path": "lib.rs" })),
        result("c1", FILE),
        call("c2", "Edit", edit),
        result("c2", "ok"),
    ]));
    let with = |text: &'static str| {
        move |messages: &[Shared]| {
            let mut now = messages.to_vec();
            if now.len() > 2 {
                now[2] = Arc::new(Message::new(Role::Tool, vec![Part::result("c1", text)]));
            }
            now
        }
    };
    let share = |run: Run| (run.score.anchors.have, run.score.anchors.of);
    assert_eq!(share(run(&case, everything)), (1, 1));
    assert_eq!(share(run(&case, with("[+2]\n    let retry_count = 4711;\n}"))), (1, 1));
    assert_eq!(share(run(&case, with("    let retry_count = 4711;\n[+1]\n}"))), (0, 1));
    assert_eq!(share(run(&case, with("[folded]"))), (0, 1));
}

#[test]
fn instructions_have_to_stand_verbatim() {
    let case = case(json!([
        { "role": "system", "content": "Be brief." },
        user("first"),
        { "role": "assistant", "content": "yes" },
        user("second"),
        { "role": "assistant", "content": "done" },
    ]));
    assert_eq!(run(&case, everything).score.instructions.ratio(), 1.0);
    let reworded = |messages: &[Shared]| {
        let mut now = messages.to_vec();
        now[1] = Arc::new(Message::text(Role::User, "first, in other words"));
        now
    };
    let share = run(&case, reworded).score.instructions;
    assert_eq!((share.have, share.of), (3, 5));
}

#[test]
fn survival_counts_calls_that_fit() {
    let case = case(long_session(40));
    let full = run(&case, everything).score;
    let newest = run(&case, |messages: &[Shared]| messages[messages.len().saturating_sub(2)..].to_vec()).score;
    assert!(full.fits[0] < full.calls && full.fits[4] == full.calls, "{full:?}");
    assert_eq!(newest.fits, [newest.calls; 5]);
}

#[test]
fn the_trail_is_read_off_the_rendering() {
    let case = case(json!([
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
    let full = run(&case, everything).score;
    assert_eq!((full.trail_recall.have, full.trail_recall.of), (4, 4));
    let without_tests = |messages: &[Shared]| {
        let mut now = messages.to_vec();
        if now.len() > 6 {
            now[6] = Arc::new(Message::new(Role::Tool, vec![Part::result("c3", "test result: ok. 9 passed")]));
        }
        now
    };
    let wrong = run(&case, without_tests).score;
    assert_eq!((wrong.trail_recall.have, wrong.trail_recall.of), (2, 4));
    assert_eq!((wrong.trail_precision.have, wrong.trail_precision.of), (2, 3));
}

/// What is in every conversation is no evidence.
#[test]
fn common_atoms_are_left_out() {
    let of = |at: usize| {
        let own = format!("own_{at}_name");
        json!([
            user("go"),
            call("c1", "sh", json!({ "cmd": format!("everyones_name {own}") })),
            result("c1", "ok"),
            call("c2", "sh", json!({ "cmd": format!("everyones_name {own}") })),
            result("c2", "ok"),
        ])
    };
    let survey = Survey::of((0..20).map(|at| recording(&format!("{at}"), of(at))));
    let case = Case::new(recording("3", of(3)), &survey, &meter());
    let needs: Vec<&str> = case.calls[1].needs.iter().map(|need| case.atom(need)).collect();
    assert_eq!(needs, ["own_3_name"]);
}

/// Support against another conversation's actions: an engine that knows what this one needs is no better
/// there than one that drops at random.
#[test]
fn another_conversations_future_tells_nothing() {
    // All conversations speak of the same thousand names, each of its own at its own time.
    let of = |at: usize| {
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
    let survey = Survey::of((0..8).map(of));
    let contestants =
        [Contestant::Clairvoyant(Foresight::WhenItPays), Contestant::RandomLike(0, policy::Grain::Results)];
    let options = Options { budget: 100_000, prices: prices(), meter: meter(), calls: 1 };
    let comparison = compare((0..8).map(of), &survey, &contestants, &options, |_| ()).unwrap();
    let (knows, random) = (comparison.summary(1), comparison.summary(2));
    assert!(knows.hard.value > random.hard.value + 0.2, "{knows:?} {random:?}");
    assert!(knows.foreign.value < random.foreign.value + 0.2, "{knows:?} {random:?}");
}

/// The page stands alone, and words of a recording can not break out of it.
#[test]
fn the_page_is_one_file_that_quotes_safely() {
    let session = long_before(
        [call("c1", "read", json!({ "path": "lib.rs" })), result("c1", "</script><script>alert_me(1)</script>")],
        call("c2", "sh", json!({ "cmd": "alert_me" })),
    );
    let contestants = [Contestant::Engine(Box::new(Scripted(instead("[folded]"))))];
    let options = Options { budget: 100_000, prices: prices(), meter: meter(), calls: 1 };
    let recordings = std::iter::once(recording("one", session));
    let comparison = compare(recordings, &Survey::default(), &contestants, &options, |_| ()).unwrap();
    let report = Report::new(&comparison, 1, "a set", "anthropic-5m", "today", 100_000);
    assert_eq!(report.sessions[0].missteps[0].atom, "alert_me");
    let page = report.to_html();
    assert_eq!(page.matches("</script>").count(), 2, "the two elements of the page itself");
    assert!(!page.contains("/*DATA*/") && !page.contains("http-equiv") && !page.contains("src=\"http"));
    let back: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(back["rows"][1]["name"], "scripted");
}

/// The same tokens cost differently at other prices; where reading costs next to nothing, writing is all.
#[test]
fn bills_follow_the_price_table() {
    let recordings = std::iter::once(recording("one", long_session(30)));
    let contestants = [Contestant::Engine(Box::new(policy::ALL[1].clone()))];
    let options = Options { budget: 100_000, prices: prices(), meter: meter(), calls: 1 };
    let comparison = compare(recordings, &Survey::default(), &contestants, &options, |_| ()).unwrap();
    let report = Report::new(&comparison, 1, "a set", "anthropic-5m", "today", 100_000);
    let names: Vec<&str> = report.bills.iter().map(|bills| bills.price_table.as_str()).collect();
    assert!(names.contains(&"local") && names.contains(&"anthropic-5m") && names.len() >= 8, "{names:?}");
    let (full, ours) = (&comparison.outcomes[0].runs[0].score, &comparison.outcomes[0].runs[1].score);
    for bills in &report.bills {
        let cost = |spent: foldline_replay::Spent| {
            spent.read as f64 * bills.prices.read
                + spent.written as f64 * bills.prices.write
                + spent.output as f64 * bills.prices.output
        };
        let [bill, repaired] = bills.rows[1];
        assert!((bill - cost(ours.spent) / cost(full.spent)).abs() < 1e-9, "{}", bills.price_table);
        let all = cost(ours.spent) + cost(ours.repair);
        assert!((repaired - all / cost(full.spent)).abs() < 1e-9, "{}", bills.price_table);
        assert_eq!(bills.rows[0], [1.0, 1.0]);
    }
}

/// Intervals are paired: an engine that saves the same share everywhere has no spread, however different the
/// conversations are.
#[test]
fn intervals_are_paired_over_conversations() {
    let recordings = [10, 20, 40, 80].map(|rounds| recording(&format!("{rounds}"), long_session(rounds)));
    let contestants = [Contestant::Engine(Box::new(policy::ALL[0].clone()))];
    let options = Options { budget: 1_000_000, prices: prices(), meter: meter(), calls: 1 };
    let comparison = compare(recordings.into_iter(), &Survey::default(), &contestants, &options, |_| ()).unwrap();
    let bill = comparison.summary(1).bill;
    assert_eq!((bill.low, bill.value, bill.high), (1.0, 1.0, 1.0));
}
