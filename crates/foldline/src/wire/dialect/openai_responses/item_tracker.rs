//! To which item an event of a Responses stream belongs.
//!
//! OpenAI numbers the items; some servers that imitate it do not (llama.cpp), and then an item is known by
//! its id, or by the id of its call.

use std::collections::HashMap;

use crate::wire::json::scan::JsonObject;

/// The most ids that are remembered.
const MAX_TRACKED_IDS: usize = 1 << 16;

/// Tells to which item an event belongs.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemTracker {
    by_id: HashMap<String, u64>,
    next: u64,
    /// The item that was spoken of last.
    last: u64,
}

impl ItemTracker {
    /// The index of the item that an event speaks of: the provider's, or one of our own counting;
    /// `None` when it speaks of no item.
    pub(crate) fn resolve_index(&mut self, kind: &str, data: &JsonObject<'_>) -> Option<u64> {
        let item = data.object("item");
        let field = |key: &str| item.as_ref().and_then(|item| item.string(key));
        let ids = [data.string("item_id"), field("id"), field("call_id")];
        let ids: Vec<_> = ids.into_iter().flatten().filter(|id| !id.is_empty()).collect();
        let named = !ids.is_empty();
        let known = ids.iter().find_map(|id| self.by_id.get(id.as_ref()).copied());
        let index = match (data.u64(&["output_index"]), known) {
            (Some(index), _) | (None, Some(index)) => index,
            (None, None) if kind == "response.output_item.added" => self.next,
            (None, None) if item.is_some() && named => self.next,
            (None, None) if item.is_some() || named || kind.ends_with(".delta") => self.last,
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
