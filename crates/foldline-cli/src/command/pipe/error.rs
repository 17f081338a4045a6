//! Error answers of `foldline pipe`.

use foldline::ErrorKind;
use foldline::laws::LawViolation;
use foldline::tokens::Tokens;
use serde_json::{Value, json};

/// Error answer.
pub(super) struct PipeError {
    kind: &'static str,
    pub(super) message: String,
    floor_and_budget: Option<(Tokens, Tokens)>,
    law: Option<&'static str>,
}

impl PipeError {
    pub(super) fn new(kind: &'static str, message: impl ToString) -> Self {
        Self { kind, message: message.to_string(), floor_and_budget: None, law: None }
    }

    /// Creates the error for messages that break a law.
    pub(super) fn law_broken(violation: &LawViolation) -> Self {
        Self { law: Some(violation.law.name()), ..Self::new("law_broken", violation) }
    }

    pub(super) fn to_json(&self) -> Value {
        let mut object = json!({ "kind": self.kind, "message": self.message });
        if let Some((floor, budget)) = self.floor_and_budget {
            object["floor"] = floor.into();
            object["budget"] = budget.into();
        }
        if let Some(law) = self.law {
            object["law"] = law.into();
        }
        object
    }
}

impl From<foldline::Error> for PipeError {
    fn from(error: foldline::Error) -> Self {
        let (kind, floor_and_budget) = match error.kind() {
            ErrorKind::CannotFit { floor, budget, .. } => ("cannot_fit", Some((*floor, *budget))),
            ErrorKind::NotJson { .. } => ("not_json", None),
            ErrorKind::TooDeep { .. } => ("too_deep", None),
            ErrorKind::NotARequest => ("not_a_message", None),
            _ => ("failed", None),
        };
        Self { floor_and_budget, ..Self::new(kind, error) }
    }
}
