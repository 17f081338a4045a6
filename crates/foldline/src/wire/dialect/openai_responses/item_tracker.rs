//! Matches events of a Responses stream to items.
//!
//! OpenAI numbers the items; some compatible servers do not (llama.cpp), and then an item is identified by its id, or
//! by its call id.

use std::collections::HashMap;

use crate::wire::json::scan::JsonObject;

/// Maximum number of tracked ids.
const MAX_TRACKED_IDS: usize = 1 << 16;

/// Finds the item to which an event belongs.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemTracker {
    by_id: HashMap<String, u64>,
    next: u64,
    /// The item of the latest event.
    last: u64,
}

impl ItemTracker {
    /// Returns the index of an event's item: the provider's, or one assigned here; `None` if the event has no item.
    pub(crate) fn resolve_index(&mut self, kind: &str, data: &JsonObject<'_>) -> Option<u64> {
        let item = data.object("item");
        let field = |key: &str| item.as_ref().and_then(|item| item.string(key));
        let ids = [data.string("item_id"), field("id"), field("call_id")];
        let ids: Vec<_> = ids.into_iter().flatten().filter(|id| !id.is_empty()).collect();
        let has_id = !ids.is_empty();
        let known = ids.iter().find_map(|id| self.by_id.get(id.as_ref()).copied());
        let index = match (data.u64(&["output_index"]), known) {
            (Some(index), _) | (None, Some(index)) => index,
            (None, None) if kind == "response.output_item.added" => self.next,
            (None, None) if item.is_some() && has_id => self.next,
            (None, None) if item.is_some() || has_id || kind.ends_with(".delta") => self.last,
            (None, None) => return None,
        };
        if item.is_some() && self.by_id.len() < MAX_TRACKED_IDS {
            self.by_id.extend(ids.into_iter().map(|id| (id.into_owned(), index)));
        }
        self.next = self.next.max(index.saturating_add(1));
        self.last = index;
        Some(index)
    }
}
