//! Brings the session of a Chat Completions body into a window, with a model behind any server, and says in one line of JSON
//! what became of it.
//!
//! ```text
//! cargo run -p foldline-summarize --example enforce -- http://127.0.0.1:8080 NAME WINDOW SECONDS [plain] < body.json
//! ```

#![expect(clippy::print_stdout, reason = "it is what the example is for")]

use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldline::wire::{Format, Request};
use foldline::{Conversation, Message, Part, Role};
use foldline_summarize::{
    CascadeStep, EnforceOptions, HttpModel, ModelEndpoint, ModelInfo, Summarizer, SummaryLimits, ToolStyle,
    enforce_context_window,
};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [base, name, window, seconds, plain @ ..] = arguments.as_slice() else {
        return Err("say where the server is, the model's name, its window, and how many seconds it may take".into());
    };
    let speech = if plain.is_empty() { ToolStyle::Calls } else { ToolStyle::Text };
    let time = Duration::from_secs(seconds.parse()?);
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body)?;
    let mut session = Request::parse(Format::OpenAiChat, &body)?.conversation().clone().into_owned();
    let users = user_texts(&session);

    let traits = ModelInfo { window: window.parse()?, tool_style: speech, ..ModelInfo::for_model(name) };
    let meter = traits.meter.clone();
    let endpoint = ModelEndpoint {
        format: Format::OpenAiChat,
        base_url: base.clone(),
        model: name.clone(),
        api_key: None,
        headers: Vec::new(),
    };
    let model = Arc::new(HttpModel::with_info(endpoint, traits)?);
    let limits =
        SummaryLimits { total_time: time, call_time: time, iterations: 6, sub_calls: 4, ..SummaryLimits::default() };
    let summariser = Summarizer::new(model).with_limits(limits);
    let with = EnforceOptions { summarizer: Some(&summariser), ..EnforceOptions::new(window.parse()?, meter) };
    let events = Mutex::new(Vec::new());
    let listener = |event: foldline_summarize::CascadeEvent| {
        if !matches!(event.step, CascadeStep::Progress(_)) {
            events.lock().expect("nobody panics with it").push(event.step);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(enforce_context_window(&mut session, &with, &listener));
    let stayed = user_texts(&session);
    let report = json!({
        "end": format!("{:?}", done.outcome),
        "fits": done.fits(),
        "before": done.tokens_before,
        "after": done.tokens_after,
        "budget": done.budget,
        "spent": done.spent,
        "users_words_stayed": users.iter().all(|said| stayed.contains(said)),
        "events": events.into_inner().expect("nobody panics with it"),
        "frame": stayed.iter().find(|said| said.starts_with("[summary of ")),
    });
    println!("{report}");
    Ok(())
}

fn user_texts(session: &Conversation<'_>) -> Vec<String> {
    let said = |message: &&Message<'_>| message.role == Role::User;
    let parts = session.messages.iter().filter(said).flat_map(|message| &message.parts);
    parts.filter_map(Part::as_text).map(str::to_owned).collect()
}
