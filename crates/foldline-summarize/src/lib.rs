//! When folding is not enough: a model may write a briefing of what was dropped, for texts far beyond its own window,
//! and it is never trusted blindly and never needed.
//!
//! [`Summariser`] lets a [`Model`] look at a text as at an environment and hand in a summary, which a [`Gate`] of code
//! checks against the text. What a tool gave back is routed by [`Route`]. [`enforce_context_window`] brings an agent's session
//! into its window, with a model or without; [`prepare`] writes its summary ahead of time.
//!
//! Nothing here reads a clock to decide what is said, touches files or the environment, or sends anything but the
//! questions to the models that it is given.

mod cascade;
mod command;
mod fallback;
mod gate;
mod http;
pub(crate) mod limits;
mod model;
mod prepare;
mod progress;
mod route;
pub(crate) mod summarizer;
pub(crate) mod text_environment;

pub use crate::limits::{LimitKind, ModelSpend, SummaryLimits};
pub use crate::summarizer::{Summarizer, SummaryAuthor, SummaryResult, SummaryTask};
pub use crate::text_environment::{GrepMatches, MAX_ROW_BYTES, SearchPattern, TextEnvironment, ViewLimits};
pub use cascade::{
    ActionRecord, CascadeEvent, CascadeListener, CascadeStep, EnforceOptions, EnforceOutcome, EnforceResult,
    EnforceStrategy, enforce_context_window,
};
pub use fallback::extract_facts;
pub use gate::{QualityGate, SummaryFlaw};
pub use http::{HttpModel, ModelEndpoint};
pub use model::{
    LanguageModel, ModelError, ModelErrorKind, ModelInfo, ModelRequest, ModelResponse, ResponseFuture, ToolStyle,
};
pub use prepare::{MessageFingerprint, PREPARE_THRESHOLD, PrepareResult, PreparedSummary, prepare_summary};
pub use progress::{ProgressEvent, ProgressListener, SummaryOutcome, forward_events};
pub use route::{OutputRoute, RouteMode, RouteSizes, RouteThresholds, ToolOutput, needs_exact_output};
