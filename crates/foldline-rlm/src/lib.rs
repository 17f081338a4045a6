//! When folding is not enough: a model may write a briefing of what was dropped, for texts far beyond its own window,
//! and it is never trusted blindly and never needed.
//!
//! [`Summariser`] lets a [`Model`] look at a text as at an environment and hand in a summary, which a [`Gate`] of code
//! checks against the text. What a tool gave back is routed by [`Route`]. [`enforce_context_window`] brings an agent's session
//! into its window, with a model or without; [`prepare`] writes its summary ahead of time.
//!
//! Nothing here reads a clock to decide what is said, touches files or the environment, or sends anything but the
//! questions to the models that it is given.

mod account;
mod cascade;
mod command;
mod environment;
mod fallback;
mod gate;
mod http;
mod model;
mod prepare;
mod progress;
mod route;
mod summarise;

pub use account::{Limit, Limits, Spent};
pub use cascade::{
    CascadeEvent, CascadeListener, End, Enforce, Enforced, Record, Step, Strategy, enforce_context_window,
};
pub use environment::{Clamp, Environment, Found, Pattern, ROW};
pub use fallback::facts;
pub use gate::{Flaw, Gate};
pub use http::{Endpoint, HttpModel};
pub use model::{Answer, Answering, Model, ModelError, ModelErrorKind, Question, Speech, Traits};
pub use prepare::{Fingerprint, NEAR, Preparation, Prepared, prepare};
pub use progress::{Outcome, Progress, ProgressListener, forward};
pub use route::{Mode, Output, Route, Sizes, Thresholds, is_exact};
pub use summarise::{Author, Summariser, Summary, Task};
