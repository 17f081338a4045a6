//! To which call a streamed piece of one belongs.
//!
//! Servers that speak Chat Completions differ most in this: calls come whole or in pieces, with the id
//! and name once or every time, with an index or without, or with the same index for all. A call is
//! the same one while its index is the same and its id does not change.

use std::collections::HashMap;

use crate::wire::response::stream::OutputPosition;

/// Tells to which call a delta belongs.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallTracker {
    /// The id of each call, once it is told.
    ids: Vec<String>,
    by_index: HashMap<OutputPosition, usize>,
    by_id: HashMap<(u64, String), usize>,
    /// The call that grew last, of each choice.
    last_by_choice: HashMap<u64, usize>,
}

/// What a delta says about the call that it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallDelta<'a> {
    pub(crate) choice: u64,
    pub(crate) index: Option<u64>,
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) shape: CallShape,
}

/// Which field of a delta the call stands in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallShape {
    /// `tool_calls[].function`.
    #[default]
    Function,
    /// `tool_calls[].custom`.
    Custom,
    /// `function_call`, from before there were several.
    LegacyFunction,
}

impl CallTracker {
    /// The number of the call, when it is not a new one.
    pub(crate) fn find(&self, it: CallDelta<'_>) -> Option<usize> {
        let by_id = || self.by_id.get(&(it.choice, it.id.to_owned())).copied();
        match it.index {
            Some(index) => {
                let there = *self.by_index.get(&OutputPosition { choice: it.choice, index })?;
                let same = it.id.is_empty() || self.ids[there].is_empty() || self.ids[there] == it.id;
                if same { Some(there) } else { by_id() }
            }
            None if !it.id.is_empty() => by_id(),
            None if it.shape != CallShape::LegacyFunction && !it.name.is_empty() => None,
            None => self.last_by_choice.get(&it.choice).copied(),
        }
    }

    /// Notes a new call; its number is the next one.
    pub(crate) fn add(&mut self, it: CallDelta<'_>) -> usize {
        let call = self.ids.len();
        self.ids.push(String::new());
        if let Some(index) = it.index {
            self.by_index.insert(OutputPosition { choice: it.choice, index }, call);
        }
        call
    }

    /// Notes that a call was spoken of, perhaps with its id.
    pub(crate) fn record_delta(&mut self, call: usize, it: CallDelta<'_>) {
        if self.ids[call].is_empty() && !it.id.is_empty() {
            self.ids[call] = it.id.to_owned();
            self.by_id.insert((it.choice, it.id.to_owned()), call);
        }
        self.last_by_choice.insert(it.choice, call);
    }

    /// Whether a choice has any call.
    pub(crate) fn has_calls(&self, choice: u64) -> bool {
        self.last_by_choice.contains_key(&choice)
    }
}
