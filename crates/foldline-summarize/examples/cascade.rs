//! The enforcement cascade with a scripted model, in a struct that owns everything it needs.
//!
//! Run it with `cargo run -p foldline-summarize --no-default-features --example cascade`.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::sync::Arc;

use foldline_summarize::foldline::conversation::{OwnedConversation, ToolCall};
use foldline_summarize::foldline::{Conversation, MemoryStore, Message, Part, Role};
use foldline_summarize::{
    EnforceOptions, EnforceResult, LanguageModel, ModelInfo, ModelRequest, ModelResponse, ResponseFuture, Summarizer,
};

/// An agent that owns its session, its summarizer and its limits.
struct ExampleAgent {
    session: OwnedConversation,
    enforcer: EnforceOptions,
}

impl ExampleAgent {
    fn new(model: Arc<dyn LanguageModel>, store: Arc<MemoryStore>) -> Self {
        let meter = model.info().meter.clone();
        let enforcer = EnforceOptions::new(16_000, meter).with_summarizer(Summarizer::new(model)).with_store(store);
        Self { session: Conversation::default(), enforcer }
    }

    /// Before every step: brings the session into its window.
    async fn enforce(&mut self) -> EnforceResult<'static> {
        let listener = |event| println!("{}", serde_json::to_string(&event).unwrap_or_default());
        self.enforcer.enforce(&mut self.session, &listener).await
    }
}

/// Writes its summary at once. A real model explores the text first.
struct ScriptedModel(ModelInfo);

impl LanguageModel for ScriptedModel {
    fn info(&self) -> &ModelInfo {
        &self.0
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest<'a>) -> ResponseFuture<'a> {
        Box::pin(async move {
            assert!(request.tools.iter().any(|tool| tool.name == "final"));
            let summary = "Goal: read the tables. State: tables 0 to 30 were read; nothing was changed. Next: read on.";
            let arguments = serde_json::json!({ "text": summary }).to_string();
            let call = ToolCall::new("s1", "final", arguments);
            Ok(ModelResponse { calls: vec![call], ..ModelResponse::default() })
        })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Arc::new(MemoryStore::default());
    let mut agent = ExampleAgent::new(Arc::new(ScriptedModel(ModelInfo::for_model("gpt-4o"))), Arc::clone(&store));
    agent.session.messages.push(Message::text(Role::User, "Read the tables."));
    for at in 0..60 {
        let call = Part::call(format!("c{at}"), "read_table", format!(r#"{{"table":{at}}}"#));
        agent.session.messages.push(Message::new(Role::Assistant, vec![call]));
        let table: String = (0..40).map(|row| format!("{at};{row};{}\n", at * row)).collect();
        agent.session.messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), table)]));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let result = runtime.block_on(agent.enforce());
    println!("{:?}: {} tokens instead of {}", result.outcome, result.tokens_after, result.tokens_before);
    assert!(result.fits() && agent.session.messages[0].parts == [Part::text("Read the tables.")]);
    // What was dropped is in the store, under the handle in the result.
    let dropped = result.handle.and_then(|handle| store.get(handle)).expect("stored before anything was dropped");
    println!("{} bytes were dropped and can be restored", dropped.len());
    Ok(())
}
