//! The result of preparing a request: what is sent, and everything that its response needs.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use foldline::tokens::Tokens;
use foldline::wire::ReportedId;
use foldline_archive::TenantArchive;

use crate::proxy::fold::archive_writer::{PendingSync, StoredHandles};
use crate::proxy::fold::job::{FoldJob, HiddenRoundsLog};
use crate::proxy::fold::request_facts::RequestFacts;
use crate::proxy::fold::session_facts::TightBudget;
use crate::proxy::fold::summary_job::SummaryJob;
use crate::proxy::upstream::diagnosis::CacheDiagnosis;
use crate::proxy::upstream::models::UpstreamModel;

/// A request that is ready to be sent.
#[derive(Clone)]
pub(crate) struct PreparedRequest {
    /// The job, for folding it again.
    pub(crate) job: Arc<FoldJob>,
    /// Body; none if the client's own bytes are sent.
    pub(crate) body: Option<Bytes>,
    /// Complete conversation, not folded and without the injected tool.
    pub(crate) unfolded_body: Bytes,
    /// Sync of the new originals to disk.
    pub(crate) pending_sync: Option<Arc<PendingSync>>,
    /// True if the unfold tool is offered.
    pub(crate) tool_offered: bool,
    /// Response id that the client gets for a response in several rounds: a client that continues from it must reach the
    /// round after the hidden calls.
    pub(crate) reported_id: ReportedId,
    pub(crate) hidden_rounds: HiddenRoundsLog,
    pub(crate) model: Arc<UpstreamModel>,
    pub(crate) model_name: String,
    /// Tokens as received and as sent.
    pub(crate) received_tokens: Tokens,
    pub(crate) sent_tokens: Tokens,
    /// Folds in the body, and the passes that made them.
    pub(crate) fold_count: u64,
    pub(crate) pass_names: BTreeSet<&'static str>,
    /// Maximum tokens of the request.
    pub(crate) budget: Tokens,
    /// Tokens reserved for the response.
    pub(crate) max_output: Option<Tokens>,
    /// The archive of the session.
    pub(crate) archive: Option<TenantArchive>,
    /// Summary that is due for the older rounds.
    pub(crate) summary_job: Option<Arc<SummaryJob>>,
    /// Budget of a retry, which the conversation keeps if the retry is accepted.
    pub(crate) tight: Option<Arc<TightBudget>>,
    /// Originals that the model may unfold.
    pub(crate) stored: StoredHandles,
    /// Facts for the record of the request.
    pub(crate) facts: Option<Arc<RequestFacts>>,
    /// True if it continues a message thread and must not be sent: the client then sends its whole history.
    pub(crate) is_refused_thread: bool,
    /// The cache diagnosis that was requested.
    pub(crate) diagnosis: Option<CacheDiagnosis>,
    /// The field because of which it is not folded: the provider stores the history.
    pub(crate) passthrough: Option<&'static str>,
}

impl PreparedRequest {
    /// Returns the tokens of the prompt that is sent in a mode: only `Fold` sends the folded one.
    pub(crate) fn prompt_tokens(&self) -> Tokens {
        if self.job.is_folding() { self.sent_tokens } else { self.received_tokens }
    }

    /// Returns the request without its bodies, which can be large, for the time after it was sent.
    pub(crate) fn without_bodies(self) -> Self {
        let job = Arc::new(FoldJob { body: Bytes::new(), ..FoldJob::clone(&self.job) });
        let diagnosis = self.diagnosis.map(|asked| CacheDiagnosis { plain_body: Bytes::new(), ..asked });
        Self { job, body: None, unfolded_body: Bytes::new(), diagnosis, ..self }
    }
}
