//! Times the turns of a scripted agent, for comparison with the packages of other languages:
//! `cargo run --release -p foldline-embed --example turns -- 2000`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use foldline_embed::{EmbeddedSession, SessionOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let turns: usize = std::env::args().nth(1).as_deref().unwrap_or("2000").parse()?;
    let options = SessionOptions::from_json(r#"{"model":"gpt-4o","budget":32000}"#)?;
    let mut session = EmbeddedSession::new(&options)?;
    let mut quarters = [Duration::ZERO; 4];
    session.push(r#"[{"role":"user","content":"Make the parser faster."}]"#)?;
    for at in 0..turns {
        let round = round(at)?;
        let begin = Instant::now();
        session.push(&round)?;
        session.plan_request()?;
        quarters[at * 4 / turns] += begin.elapsed();
    }
    for (at, time) in quarters.iter().enumerate() {
        let per_turn = time.as_secs_f64() * 4e6 / turns as f64;
        writeln!(std::io::stdout(), "quarter {}: {per_turn:.0} us a turn", at + 1)?;
    }
    Ok(())
}

/// Returns a call and its result, different in every turn.
fn round(at: usize) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for line in 0..40 {
        write!(text, "let value_{at}_{line} = parse(input_{at}, {line});\\n")?;
    }
    Ok(format!(
        r#"[{{"role":"assistant","content":null,"tool_calls":[{{"id":"c{at}","type":"function","function":{{"name":"read_file","arguments":"{{\"path\": \"src/file_{at}.rs\"}}"}}}}]}},{{"role":"tool","tool_call_id":"c{at}","content":"{text}"}}]"#
    ))
}
