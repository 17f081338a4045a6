//! Summaries by a language model for sessions that folding alone cannot fit, including texts far beyond the model's own
//! window. The model is never trusted blindly and never required.
//!
//! [`Summarizer`] lets a [`LanguageModel`] explore a text as an environment and submit a summary, which a
//! [`QualityGate`] of code checks against the text. [`OutputRoute`] decides which tool outputs are summarized.
//! [`enforce_context_window`] brings an agent's session into its window, with or without a model;
//! [`prepare_summary`] writes its summary ahead of time.
//!
//! Nothing here lets the clock decide what is written, accesses files or the environment, or sends anything but
//! requests to the models that it is given.

pub(crate) mod cascade;
mod command;
mod fallback;
mod gate;
#[cfg(feature = "http")]
mod http;
pub(crate) mod limits;
mod model;
mod prepare;
pub(crate) mod prepared_summary;
pub(crate) mod progress;
mod route;
pub(crate) mod summarizer;
pub(crate) mod text_environment;
pub(crate) mod tool_table;

// The types of other crates in the signatures of this one.
pub use foldline;
#[cfg(feature = "http")]
pub use hyper::header::{HeaderName, HeaderValue};
pub use tokio_util::sync::CancellationToken;

pub use crate::limits::{LimitKind, ModelSpend, SummaryLimits};
pub use crate::summarizer::{Summarizer, SummaryResult, SummaryTask};
pub use crate::text_environment::{GrepMatches, MAX_ROW_BYTES, SearchPattern, TextEnvironment, ViewLimits};
pub use crate::tool_table::{ToolClass, ToolTable};
pub use cascade::{
    ActionRecord, CascadeEvent, CascadeListener, CascadeStep, EnforceOptions, EnforceOutcome, EnforceResult,
    EnforceStrategy, FailureFallback, TraceId, enforce_context_window,
};
pub use fallback::extract_facts;
pub use gate::{QualityGate, SummaryFlaw};
#[cfg(feature = "http")]
pub use http::{HttpModel, HttpTransport, ModelEndpoint, TransportFuture};
pub use model::{
    LanguageModel, ModelError, ModelErrorKind, ModelInfo, ModelRequest, ModelResponse, ResponseFuture, ToolStyle,
};
pub use prepare::{PREPARE_THRESHOLD, PrepareResult, prepare_summary};
pub use prepared_summary::{MessageFingerprint, PreparedSummary};
pub use progress::{
    EventSender, ForwardedEvent, ProgressEvent, ProgressListener, SummaryAuthor, SummaryOutcome, forward_events,
};
pub use route::{OutputRoute, RouteMode, RouteSizes, RouteThresholds, ToolOutput, needs_exact_output};
