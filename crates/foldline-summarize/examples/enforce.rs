//! Brings the session of a Chat Completions body into a window, with a model on any server, and prints the result
//! as one line of JSON.
//!
//! ```text
//! cargo run -p foldline-summarize --example enforce -- http://127.0.0.1:8080 NAME WINDOW SECONDS [plain] < body.json
//! ```

#![expect(clippy::print_stdout, reason = "the example prints its report")]

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
        return Err("usage: enforce SERVER MODEL WINDOW SECONDS [plain] < body.json".into());
    };
    let tool_style = if plain.is_empty() { ToolStyle::Calls } else { ToolStyle::Text };
    let time = Duration::from_secs(seconds.parse()?);
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body)?;
    let mut session = Request::parse(Format::OpenAiChat, &body)?.conversation().clone().into_owned();
    let users = user_texts(&session);

    let info = ModelInfo { window: window.parse()?, tool_style, ..ModelInfo::for_model(name) };
    let meter = info.meter.clone();
    let endpoint = ModelEndpoint {
        format: Format::OpenAiChat,
        base_url: base.clone(),
        model: name.clone(),
        api_key: None,
        headers: Vec::new(),
    };
    let model = Arc::new(HttpModel::with_info(endpoint, info)?);
    let limits =
        SummaryLimits { total_time: time, call_time: time, iterations: 6, sub_calls: 4, ..SummaryLimits::default() };
    let summarizer = Summarizer::new(model).with_limits(limits);
    let options =
        EnforceOptions { summarizer: Some(summarizer.clone()), ..EnforceOptions::new(window.parse()?, meter) };
    let events = Mutex::new(Vec::new());
    let listener = |event: foldline_summarize::CascadeEvent| {
        if !matches!(event.step, CascadeStep::Progress(_)) {
            events.lock().expect("no listener panics").push(event.step);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(enforce_context_window(&mut session, &options, &listener));
    let kept = user_texts(&session);
    let report = json!({
        "end": format!("{:?}", result.outcome),
        "fits": result.fits(),
        "before": result.tokens_before,
        "after": result.tokens_after,
        "budget": result.budget,
        "spent": result.spent,
        "users_words_stayed": users.iter().all(|text| kept.contains(text)),
        "events": events.into_inner().expect("no listener panics"),
        "frame": kept.iter().find(|text| text.starts_with("[summary of ")),
    });
    println!("{report}");
    Ok(())
}

fn user_texts(session: &Conversation<'_>) -> Vec<String> {
    let is_user = |message: &&Message<'_>| message.role == Role::User;
    let parts = session.messages.iter().filter(is_user).flat_map(|message| &message.parts);
    parts.filter_map(Part::as_text).map(str::to_owned).collect()
}
