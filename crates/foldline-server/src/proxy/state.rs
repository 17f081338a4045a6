//! State shared by all requests: fields only. What can be done with a field is a method of its type; what needs several
//! of them is a function of the module that does it.

use std::io;
use std::sync::Arc;

use foldline_archive::Archive;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::activity::{ActivityLogs, now_millis};
use crate::proxy::admin::answer_cache::AnswerCache;
use crate::proxy::admin::metrics::ProxyMetrics;
use crate::proxy::admin::policy_comparison::PolicyComparison;
use crate::proxy::admin::readiness::ReadinessProbe;
use crate::proxy::downstream::auth::TokenAuth;
use crate::proxy::downstream::body_budget::BodyBudget;
use crate::proxy::downstream::request_check::RequestChecks;
use crate::proxy::fold::session_cache::SessionCache;
use crate::proxy::fold::session_pins::SessionPins;
use crate::proxy::fold::tenant::TenantDirectory;
use crate::proxy::fold::tenant_mode::TenantModes;
use crate::proxy::fold::tenant_quota::TenantQuotas;
use crate::proxy::settings::ProxySettings;
use crate::proxy::traces::RequestTraces;
use crate::proxy::upstream::client::UpstreamClient;
use crate::proxy::upstream::diagnosis::DiagnosticsRefusals;
use crate::proxy::upstream::models::ModelRegistry;
use crate::proxy::upstream::unknown_paths::UnknownPaths;

/// Maximum number of summaries written concurrently.
const MAX_CONCURRENT_SUMMARIES: usize = 4;

/// State shared by all requests.
pub(crate) struct AppState {
    pub(crate) settings: ProxySettings,
    pub(crate) metrics: Arc<ProxyMetrics>,
    pub(crate) checks: RequestChecks,
    pub(crate) auth: TokenAuth,
    pub(crate) tenants: TenantDirectory,
    pub(crate) modes: TenantModes,
    pub(crate) quotas: Arc<TenantQuotas>,
    /// One permit per concurrent request.
    pub(crate) request_permits: Arc<Semaphore>,
    pub(crate) body_budget: BodyBudget,
    pub(crate) sessions: SessionCache,
    pub(crate) pins: SessionPins,
    pub(crate) models: ModelRegistry,
    /// Effects and costs of requests, per tenant.
    pub(crate) activity: ActivityLogs,
    pub(crate) answers: AnswerCache,
    pub(crate) diagnostics_refusals: DiagnosticsRefusals,
    pub(crate) traces: RequestTraces,
    pub(crate) comparison: Arc<PolicyComparison>,
    pub(crate) readiness: ReadinessProbe,
    /// Time of the start, in milliseconds since 1970.
    pub(crate) started_at: i64,
    pub(crate) client: UpstreamClient,
    pub(crate) unknown_paths: UnknownPaths,
    /// One permit per summary that is being written.
    pub(crate) summary_permits: Arc<Semaphore>,
    /// Cancelled when the proxy stops.
    pub(crate) stop: CancellationToken,
}

impl AppState {
    /// Creates the state of a proxy with these settings.
    ///
    /// # Errors
    ///
    /// The settings contradict each other.
    pub(crate) fn new(settings: ProxySettings, archive: Option<Archive>) -> io::Result<Self> {
        let metrics = Arc::new(ProxyMetrics::new());
        let (limits, timeouts) = (settings.limits, settings.timeouts);
        let client = UpstreamClient::new(timeouts, &settings.outbound)?;
        Ok(Self {
            checks: RequestChecks::new(&settings),
            auth: TokenAuth::new(&settings.tokens, &settings.gateways, settings.is_open()),
            tenants: TenantDirectory::new(&settings, archive, metrics.clone())?,
            modes: TenantModes::new(settings.mode),
            quotas: Arc::new(TenantQuotas::new(limits, timeouts)),
            metrics,
            request_permits: Arc::new(Semaphore::new(limits.requests)),
            body_budget: BodyBudget::new(limits.total_body_bytes, limits.body_bytes, timeouts.body_budget),
            sessions: SessionCache::new(limits.sessions),
            pins: SessionPins::new(limits.sessions),
            models: ModelRegistry::new(settings.models.clone(), settings.window, timeouts.learned),
            activity: ActivityLogs::default(),
            answers: AnswerCache::default(),
            diagnostics_refusals: DiagnosticsRefusals::default(),
            comparison: Arc::new(PolicyComparison::new(settings.policy_replay.clone())),
            readiness: ReadinessProbe::default(),
            started_at: now_millis(),
            traces: RequestTraces::new(settings.otlp_endpoint.as_deref(), &client)?,
            client,
            unknown_paths: UnknownPaths::default(),
            summary_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_SUMMARIES)),
            stop: CancellationToken::new(),
            settings,
        })
    }
}
