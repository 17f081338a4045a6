//! A text far beyond any window: two megabytes with forty facts in it, and a model that really searches for them.

use std::collections::BTreeSet;
use std::time::Duration;

use foldline::Meter;
use foldline_summarize::{Summarizer, SummaryLimits, SummaryOutcome, SummaryTask};
use serde_json::json;

use crate::server::{ModelServer, ScriptedReply};

/// Returns the facts: names and values that occur nowhere else.
fn planted_facts() -> Vec<(String, String)> {
    (0..40_u64)
        .map(|at| {
            let value = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) % 0xffff_ffff;
            (format!("secret_{at:02}"), format!("v{value:08x}"))
        })
        .collect()
}

/// Returns two megabytes of noise, with the facts spread over it.
fn haystack() -> String {
    let facts = planted_facts();
    let mut text = String::new();
    let mut next = 0;
    for line in 0_u64.. {
        if text.len() > 2_000_000 {
            break;
        }
        let noise = line.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40;
        text.push_str(&format!(
            "12:{:02}:{:02} worker {} handled request {noise} in {} ms\n",
            line / 60 % 60,
            line % 60,
            line % 16,
            noise % 97
        ));
        if next < facts.len() && text.len() > 2_000_000 * next / facts.len() + 11_000 {
            text.push_str(&format!("12:00:00 config {} is {}\n", facts[next].0, facts[next].1));
            next += 1;
        }
    }
    assert_eq!(next, 40);
    text
}

/// Returns the names of the facts that a text contains.
fn facts_in(text: &str) -> BTreeSet<String> {
    planted_facts()
        .into_iter()
        .filter(|(name, value)| {
            text.contains(&format!("{name} is {value}")) || text.contains(&format!("{name}={value}"))
        })
        .map(|(name, _)| name)
        .collect()
}

/// The search strategy of the scripted model.
#[derive(Clone, Copy, PartialEq)]
enum SearchStrategy {
    /// One pattern finds all of them.
    OnePattern,
    /// The model knows only the names, and searches for several of them in each turn.
    ByName,
    /// The sub-model reads the whole text, and the root model greps for the rest.
    ReadThrough,
}

async fn run_search(window: u64, strategy: SearchStrategy) -> (foldline_summarize::SummaryResult, usize, Vec<u64>) {
    let found = std::sync::Mutex::new(BTreeSet::<String>::new());
    let server = ModelServer::start(move |seen| {
        if !seen.is_root() {
            // The sub-model really reads its input.
            let lines: Vec<String> =
                seen.text().lines().filter(|line| line.contains("config secret_")).map(str::to_owned).collect();
            return ScriptedReply::text(if lines.is_empty() { "not there".into() } else { lines.join("\n") });
        }
        let mut found = found.lock().unwrap();
        let last = seen.newest_text();
        found.extend(facts_in(&last));
        let mark = "more matches, from row ";
        let next = last.find(mark).map(|at| last[at + mark.len()..].split(' ').next().unwrap().parse::<u64>().unwrap());
        if strategy == SearchStrategy::ReadThrough && seen.index == 0 {
            return ScriptedReply::call(
                "ask",
                json!({"first": 1, "last": 100_000, "question": "which config values are there?"}),
            );
        }
        let missing: Vec<String> =
            planted_facts().into_iter().map(|(name, _)| name).filter(|name| !found.contains(name)).collect();
        if strategy == SearchStrategy::ByName && !missing.is_empty() {
            let grep = |name: &String| ("grep", json!({"pattern": format!(r"\b{name}\b")}));
            return ScriptedReply::Calls(missing.iter().take(16).map(grep).collect());
        }
        match next {
            _ if found.len() == 40
                || seen.index > 0 && next.is_none() && last.contains("secret_") && !last.contains("rows 1 to") =>
            {
                let values = planted_facts().into_iter().filter(|(name, _)| found.contains(name));
                let values: Vec<String> = values.map(|(name, value)| format!("{name}={value}")).collect();
                ScriptedReply::final_call(format!("Goal: all config secrets. Values: {}", values.join(", ")))
            }
            from => {
                ScriptedReply::call("grep", json!({"pattern": "config secret_[0-9]+ is", "from": from.unwrap_or(0)}))
            }
        }
    })
    .await;
    let text = haystack();
    let task = SummaryTask {
        text: &text,
        goal: "list all config secrets",
        earlier_summary: None,
        max_tokens: 1_800,
        session: None,
    };
    let limits = SummaryLimits { total_time: Duration::from_secs(60), ..SummaryLimits::default() };
    let summary = Summarizer::new(server.chat_model(window)).with_limits(limits).summarize(&task, &|_| ()).await;
    let meter = Meter::for_byte_estimate();
    let requests = server.requests();
    let contexts = requests.iter().map(|seen| seen.tokens(&meter) + seen.max_output).collect();
    (summary, requests.len(), contexts)
}

#[tokio::test]
async fn small_model_finds_all_facts_in_large_text() {
    for (window, strategy) in [
        (8_192, SearchStrategy::OnePattern),
        (8_192, SearchStrategy::ByName),
        (32_768, SearchStrategy::ByName),
        (8_192, SearchStrategy::ReadThrough),
    ] {
        let (summary, requests, contexts) = run_search(window, strategy).await;
        assert_eq!(summary.outcome, SummaryOutcome::Converged, "{window}");
        assert_eq!(facts_in(&summary.text).len(), 40);
        assert!(summary.spent.sub_calls <= 50 && summary.spent.iterations <= 15);
        assert!(contexts.iter().all(|&context| context <= window), "{contexts:?}");
        println!(
            "window {window}: {} turns, {} sub-calls, {requests} requests, largest request {} tokens with its response",
            summary.spent.iterations,
            summary.spent.sub_calls,
            contexts.iter().max().unwrap()
        );
    }
}
