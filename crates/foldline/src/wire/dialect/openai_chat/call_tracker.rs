//! Matches streamed deltas to tool calls.
//!
//! Servers with a Chat Completions API differ most in this: calls arrive whole or in fragments, with the id and name
//! once or every time, with or without an index, or with the same index for all. A delta continues a call while the
//! index is the same and the id does not change.

use std::collections::HashMap;

use crate::wire::response::stream::OutputPosition;

/// Finds the call to which a delta belongs.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallTracker {
    /// The id of each call, once known.
    ids: Vec<String>,
    by_index: HashMap<OutputPosition, usize>,
    by_id: HashMap<(u64, String), usize>,
    /// The call of the latest delta, by choice.
    last_by_choice: HashMap<u64, usize>,
}

/// The identifying fields of a delta.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallDelta<'a> {
    pub(crate) choice: u64,
    pub(crate) index: Option<u64>,
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) shape: CallShape,
}

/// The field of a delta that contains the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallShape {
    /// `tool_calls[].function`.
    #[default]
    Function,
    /// `tool_calls[].custom`.
    Custom,
    /// `function_call`, the API before parallel calls.
    LegacyFunction,
}

impl CallTracker {
    /// Returns the number of the call, unless it is a new one.
    pub(crate) fn find(&self, delta: CallDelta<'_>) -> Option<usize> {
        let by_id = || self.by_id.get(&(delta.choice, delta.id.to_owned())).copied();
        match delta.index {
            Some(index) => {
                let known = *self.by_index.get(&OutputPosition { choice: delta.choice, index })?;
                let same = delta.id.is_empty() || self.ids[known].is_empty() || self.ids[known] == delta.id;
                if same { Some(known) } else { by_id() }
            }
            None if !delta.id.is_empty() => by_id(),
            None if delta.shape != CallShape::LegacyFunction && !delta.name.is_empty() => None,
            None => self.last_by_choice.get(&delta.choice).copied(),
        }
    }

    /// Adds a new call and returns its number.
    pub(crate) fn add(&mut self, delta: CallDelta<'_>) -> usize {
        let call = self.ids.len();
        self.ids.push(String::new());
        if let Some(index) = delta.index {
            self.by_index.insert(OutputPosition { choice: delta.choice, index }, call);
        }
        call
    }

    /// Records a delta of a call, and its id if present.
    pub(crate) fn record_delta(&mut self, call: usize, delta: CallDelta<'_>) {
        if self.ids[call].is_empty() && !delta.id.is_empty() {
            self.ids[call] = delta.id.to_owned();
            self.by_id.insert((delta.choice, delta.id.to_owned()), call);
        }
        self.last_by_choice.insert(delta.choice, call);
    }

    /// Returns true if a choice has any call.
    pub(crate) fn has_calls(&self, choice: u64) -> bool {
        self.last_by_choice.contains_key(&choice)
    }
}
