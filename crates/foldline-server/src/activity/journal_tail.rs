//! A summary with its position in the journal.
//!
//! A position is valid as long as no event before it was deleted: the archive counts deletions, and the last event is
//! compared by its hash, in case that another archive is at the same place.

use foldline_archive::{Error, JournalCheckpoint, JournalState, TenantArchive};

use crate::activity::record::{EVENT_KIND, RequestActivity};
use crate::activity::summary::ActivitySummary;

/// Events read at once.
const PAGE_EVENTS: usize = 1_024;
/// Events after which a new checkpoint is worth its write.
const CHECKPOINT_EVENTS: usize = 10_000;
/// Events that a reader may be behind before it looks for a checkpoint of another process.
const MAX_EVENTS_BEHIND: i64 = 2 * CHECKPOINT_EVENTS as i64;

/// A summary of all events up to a position.
#[derive(Debug, Default)]
pub(crate) struct JournalTail {
    pub(crate) summary: ActivitySummary,
    last_event: i64,
    /// Hash of its payload.
    last_hash: Option<blake3::Hash>,
    /// Deletions of events before they were read.
    deletions: u64,
    /// Events that no stored checkpoint covers.
    unsaved_events: usize,
}

/// Events after a position.
pub(crate) struct JournalPage {
    records: Vec<RequestActivity>,
    events: usize,
    last: Option<(i64, blake3::Hash)>,
}

impl JournalPage {
    /// Returns true if there were no events after it.
    pub(crate) fn is_last(&self) -> bool {
        self.events < PAGE_EVENTS
    }

    /// Returns the id of its last event; 0 if there is none.
    pub(crate) fn last_event(&self) -> i64 {
        self.last.map_or(0, |(id, _)| id)
    }
}

impl JournalTail {
    /// Begins after the stored checkpoint, or with the first event if there is none that can be used.
    pub(crate) fn begin(archive: &TenantArchive, journal: JournalState) -> Result<Self, Error> {
        let restored = Self::restore(archive)?.filter(|tail| tail.deletions == journal.deletions);
        Ok(restored.unwrap_or_else(|| Self { deletions: journal.deletions, ..Self::default() }))
    }

    /// Restores the stored checkpoint. One that is damaged or of another version is not used.
    fn restore(archive: &TenantArchive) -> Result<Option<Self>, Error> {
        let checkpoint = match archive.journal_checkpoint() {
            Err(error) if *error.kind() == foldline_archive::ErrorKind::Damaged => {
                tracing::warn!("the checkpoint of the journal is damaged; all of the journal is read");
                return Ok(None);
            }
            checkpoint => checkpoint?,
        };
        let Some(JournalCheckpoint { position, deletions, payload }) = checkpoint else { return Ok(None) };
        let Some((summary, last_hash)) = ActivitySummary::from_bytes(&payload) else { return Ok(None) };
        let tail = Self { summary, last_event: position, last_hash, deletions, unsaved_events: 0 };
        Ok(tail.has_last_event(archive)?.then_some(tail))
    }

    /// Returns the stored checkpoint if it is so far ahead that going on from there is faster.
    pub(crate) fn skip_ahead(&self, archive: &TenantArchive, journal: JournalState) -> Result<Option<Self>, Error> {
        if journal.newest_event - self.last_event <= MAX_EVENTS_BEHIND {
            return Ok(None);
        }
        let is_ahead = |tail: &Self| tail.deletions == self.deletions && tail.last_event > self.last_event;
        Ok(Self::restore(archive)?.filter(is_ahead))
    }

    /// Returns the id of the last event that was added.
    pub(crate) fn last_event(&self) -> i64 {
        self.last_event
    }

    /// Returns true if nothing was deleted since the events were read, as far as the count of deletions shows.
    pub(crate) fn is_of(&self, journal: JournalState) -> bool {
        self.deletions == journal.deletions
    }

    /// Returns true if the last event that was added is in the journal.
    pub(crate) fn has_last_event(&self, archive: &TenantArchive) -> Result<bool, Error> {
        let Some(hash) = self.last_hash else { return Ok(true) };
        let last = archive.events(self.last_event - 1, 1)?;
        Ok(last.first().is_some_and(|event| event.id == self.last_event && blake3::hash(&event.payload) == hash))
    }

    /// Reads the events after a position.
    pub(crate) fn read_page(archive: &TenantArchive, after: i64) -> Result<JournalPage, Error> {
        let events = archive.events(after, PAGE_EVENTS)?;
        let last = events.last().map(|event| (event.id, blake3::hash(&event.payload)));
        let records = events.iter().filter(|event| event.kind == EVENT_KIND);
        // A record of a later version may not be readable.
        let records = records.filter_map(|event| serde_json::from_slice(&event.payload).ok()).collect();
        Ok(JournalPage { records, events: events.len(), last })
    }

    /// Adds the events after the position.
    pub(crate) fn add(&mut self, page: JournalPage) {
        let Some((id, hash)) = page.last else { return };
        (self.last_event, self.last_hash) = (id, Some(hash));
        self.unsaved_events += page.events;
        page.records.into_iter().for_each(|record| self.summary.add(record));
    }

    /// Returns a checkpoint, if it is time for one.
    pub(crate) fn due_checkpoint(&self) -> Option<JournalCheckpoint> {
        if self.unsaved_events < CHECKPOINT_EVENTS {
            return None;
        }
        let payload = self.summary.to_bytes(self.last_hash).ok()?;
        Some(JournalCheckpoint { position: self.last_event, deletions: self.deletions, payload })
    }

    /// Notes that a checkpoint up to this position, or a later one, is stored.
    pub(crate) fn note_checkpoint(&mut self, position: i64) {
        if position <= self.last_event {
            self.unsaved_events = 0;
        }
    }
}
