//! Actions of a recorded conversation: the model's turns that follow a request.

use std::borrow::Borrow;
use std::ops::Range;

use foldline::Message;

use crate::text::{TextOrigin, for_each_text};

/// Returns the model's turns that follow a request, as ranges of messages.
pub(crate) fn action_ranges<M: Borrow<Message<'static>>>(messages: &[M]) -> Vec<Range<usize>> {
    let mut actions: Vec<Range<usize>> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| messages[before].borrow());
        if message.borrow().opens_round(before) {
            actions.push(at..at + 1);
        } else if let Some(action) = actions.last_mut().filter(|action| action.end == at) {
            action.end += usize::from(message.borrow().is_assistant());
        }
    }
    // A conversation that begins with the model has no request before it.
    actions.retain(|action| action.start > 0);
    actions
}

/// Calls `visit` with the lines of an action: of the model's text and of its calls.
pub(crate) fn for_each_action_line(message: &Message<'_>, mut visit: impl FnMut(&str)) {
    for_each_text(message, |kind, _, text| {
        if !matches!(kind, TextOrigin::Reasoning | TextOrigin::CallId) {
            text.lines().for_each(&mut visit);
        }
    });
}
