//! The engine of foldline: keeps an LLM agent's conversation inside its model's context window at the
//! lowest cost, by folding old parts into short markers whose originals can be restored byte for byte.
//!
//! This crate does no IO, reads no clock and no environment, and uses no randomness: the same input gives
//! the same bytes on every machine. Storage is a trait, [`OriginalStore`].
//!
//! # Guarantees
//!
//! 1. **Fits**: the result has at most the budgeted tokens, or the caller gets [`ErrorKind::CannotFit`].
//! 2. **Valid**: the result breaks no provider rule that the input did not break.
//! 3. **Stable**: each result begins with the bytes of the previous one, except at a crease.
//! 4. **Recoverable**: an original leaves a request only after the store holds it.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | fold, unfold | replace a part, lines of it, or whole rounds with a marker; restore the original |
//! | marker, handle | the text that replaces an original; its content address, a short prefix of the BLAKE3 hash |
//! | crease | a request at which new folds are decided, so the cached prefix is rewritten from the first changed byte |
//! | round | one assistant turn with the results of its tool calls; the unit of dropping |
//! | request point | a position at which a request was sent: before each assistant turn, and at the end |
//! | pass, plan, stage | a pure function that proposes folds; the folds of one crease; the fixed order in which passes run |
//! | law | a provider's rule as code: see [`laws`] |
//! | archive, ledger | the durable store of originals; facts from outside that a rendering depends on: see [`Ledger`] |
//! | dialect | a provider's wire format: see [`wire`] |
//!
//! # Entry points
//!
//! - [`apply`] folds the JSON body of a whole request; [`apply_from`] continues from the state of the previous
//!   request of the same session. Use these in a proxy or gateway.
//! - [`fold`] folds a [`Conversation`]; [`resume`] continues from a [`FoldState`]. Use these if you hold parsed
//!   messages and write the request yourself.
//! - [`FoldSession`] holds a conversation that grows message by message. Use it inside an agent loop.
//!   [`engine::JsonSession`] does the same for messages in a provider's own JSON.
//! - [`strategies`] has the classic functions over messages (trim, truncate, deduplicate, prune), without
//!   markers that can be unfolded and without stability across requests.
//!
//! # Modules
//!
//! The root has the names that most programs need. [`conversation`], [`engine`], [`models`] and [`tokens`] have the
//! rest of their topics; [`wire`] reads and writes provider JSON, [`laws`] checks it, [`transcript`] reads recorded
//! sessions. No name has two places.
//!
//! # Example
//!
//! ```
//! use foldline::engine::marker;
//! use foldline::wire::{Format, OutgoingRequest, Request};
//! use foldline::{FoldOptions, FoldSession, Message, Meter, ModelTable, Part, Prices, Role};
//!
//! let (table, model) = (ModelTable::builtin(), Some("gpt-4o"));
//! let mut options = FoldOptions::new(Meter::for_model(table, model), Prices::for_model(table, model), 2_000);
//! options.handles = true; // the session itself restores the originals
//!
//! let mut session = FoldSession::new(options);
//! session.push(Message::text(Role::User, "Make the parser faster."));
//! for at in 0..30 {
//!     let source: String = (0..20).map(|line| format!("let value_{at}_{line} = parse({line});\n")).collect();
//!     let call = Part::call(format!("c{at}"), "read_file", format!(r#"{{"path":"src/file_{at}.rs"}}"#));
//!     session.push(Message::new(Role::Assistant, vec![call]));
//!     session.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), source)]));
//! }
//!
//! session.plan_request()?; // before each call to the model
//! assert!(session.raw_tokens() > 2_000 && session.tokens() <= 2_000);
//!
//! // Every marker with a handle can be unfolded.
//! let sent: Vec<Message> = session.rendered_messages(0).collect();
//! let texts = sent.iter().flat_map(|message| &message.parts).filter_map(Part::as_text);
//! let handle = texts.flat_map(marker::handles).next().expect("old rounds were folded");
//! assert!(session.unfold(handle).is_some());
//!
//! // The folded messages as a request in a provider's JSON.
//! let outgoing =
//!     OutgoingRequest { model: "gpt-4o", system: "Be brief.", messages: &sent, tools: &[], max_output_tokens: 1_000 };
//! let body = outgoing.to_body(Format::OpenAiChat)?;
//! assert_eq!(Request::parse(Format::OpenAiChat, &body)?.conversation().model.as_deref(), Some("gpt-4o"));
//! # Ok::<(), foldline::Error>(())
//! ```

pub mod conversation;
pub mod engine;
mod error;
mod event;
pub mod laws;
pub mod models;
pub mod strategies;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tokens;
pub mod transcript;
pub mod wire;

pub use crate::conversation::message::{Conversation, Message, Part, Role};
pub use crate::engine::apply::{FoldedRequest, apply, apply_from};
pub use crate::engine::archive::{MemoryStore, Original, OriginalStore};
pub use crate::engine::handle::Handle;
pub use crate::engine::left_fold::{fold, resume};
pub use crate::engine::options::{FoldOptions, Ledger};
pub use crate::engine::policy::Policy;
pub use crate::engine::rendering::FoldedConversation;
pub use crate::engine::session::FoldSession;
pub use crate::engine::state::FoldState;
pub use crate::error::{Error, ErrorKind};
pub use crate::event::FoldEvent;
pub use crate::models::prices::Prices;
pub use crate::models::table::ModelTable;
pub use crate::tokens::meter::Meter;
