//! Connections: listening, limits, and a shutdown that lets streams end.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::time::Duration;

use axum::Router;
use foldline_archive::Archive;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::proxy::admin::metrics::ProxyMetrics;
use crate::proxy::admin::stats::StatsHandle;
use crate::proxy::downstream::auth::TokenAuth;
use crate::proxy::downstream::body_budget::BodyBudget;
use crate::proxy::downstream::io_timeout::TimeoutStream;
use crate::proxy::downstream::tenancy::Tenancy;
use crate::proxy::downstream::tls;
use crate::proxy::fold::session_cache::SessionCache;
use crate::proxy::fold::summaries::SummaryTasks;
use crate::proxy::fold::tenant::resolve_tenancy;
use crate::proxy::handler::handle_request;
use crate::proxy::settings::{ProxySettings, Timeouts};
use crate::proxy::upstream::client::UpstreamClient;
use crate::proxy::upstream::models::ModelRegistry;

/// The proxy, listening.
///
/// ```
/// use foldline_server::proxy::{Proxy, Settings};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let settings = Settings { listen: ([127, 0, 0, 1], 0).into(), ..Settings::default() };
/// let proxy = Proxy::bind(settings, None).await?;
/// assert!(proxy.address().port() > 0);
/// proxy.run(async { /* until something happens */ }).await;
/// # std::io::Result::Ok(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Proxy {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    state: Arc<AppState>,
    _summary_guard: DropGuard,
}

/// What all requests share.
pub(crate) struct AppState {
    pub(crate) settings: ProxySettings,
    pub(crate) auth: TokenAuth,
    pub(crate) tenancy: Tenancy,
    /// That a request belongs to no tenant is logged once.
    pub(crate) no_tenant: Once,
    pub(crate) client: UpstreamClient,
    /// One for each request that may run at once.
    pub(crate) request_permits: Arc<Semaphore>,
    pub(crate) body_budget: BodyBudget,
    pub(crate) archive: Option<Archive>,
    pub(crate) metrics: ProxyMetrics,
    pub(crate) sessions: SessionCache,
    pub(crate) models: ModelRegistry,
    pub(crate) summary_tasks: SummaryTasks,
}

impl Proxy {
    /// Listens. Originals go to the archive; without one nothing that is folded can be unfolded.
    pub async fn bind(settings: ProxySettings, archive: Option<Archive>) -> io::Result<Self> {
        if !settings.listen.ip().is_loopback() && settings.tokens.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{} can be reached by others: set a token, or listen on 127.0.0.1", settings.listen),
            ));
        }
        let tenancy = resolve_tenancy(&settings)?;
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        let listener = bind_listener(settings.listen)?;
        let address = listener.local_addr()?;
        let (writers, _writers) = SummaryTasks::new();
        let shared = AppState {
            summary_tasks: writers,
            auth: TokenAuth::new(&settings.tokens, address),
            tenancy,
            no_tenant: Once::new(),
            client: UpstreamClient::new(settings.timeouts),
            request_permits: Arc::new(Semaphore::new(settings.limits.requests)),
            body_budget: BodyBudget::new(settings.limits.total_body_bytes, settings.timeouts.body_budget),
            archive,
            metrics: ProxyMetrics::new(),
            sessions: SessionCache::new(settings.limits.sessions),
            models: ModelRegistry::new(settings.models.clone(), settings.window, settings.timeouts.learned),
            settings,
        };
        Ok(Self { listener, address, tls, state: Arc::new(shared), _summary_guard: _writers })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns which requests share originals.
    pub fn tenancy(&self) -> Tenancy {
        self.state.tenancy
    }

    /// A look at what it does, for as long as one likes.
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle(self.state.clone())
    }

    /// Serves until `stop` comes to its end, and then until answers that have begun are complete, as
    /// far as patience goes. Then the connections that are left are closed, and folds for them are cancelled.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let patience = self.state.settings.timeouts;
        let mut connections = auto::Builder::new(TokioExecutor::new());
        connections.http1().timer(TokioTimer::new()).header_read_timeout(patience.client_read);
        connections.http2().timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(20));
        let service = TowerToHyperService::new(Router::new().fallback(handle_request).with_state(self.state.clone()));
        let open = GracefulShutdown::new();
        let cut = CancellationToken::new();
        let _cut_on_return = cut.clone().drop_guard();
        tokio::pin!(stop);
        loop {
            let stream = tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        back_off_after(&error).await;
                        continue;
                    }
                },
                () = &mut stop => break,
            };
            let _ = stream.set_nodelay(true);
            let connection = Connection {
                builder: connections.clone(),
                service: service.clone(),
                watcher: open.watcher(),
                cut: cut.clone(),
                patience,
            };
            match self.tls.clone() {
                None => drop(tokio::spawn(connection.serve(stream))),
                Some(tls) => drop(tokio::spawn(async move {
                    match tokio::time::timeout(patience.client_read, tls.accept(stream)).await {
                        Ok(Ok(stream)) => connection.serve(stream).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    }
                })),
            }
        }
        drop((self.listener, self._summary_guard));
        if tokio::time::timeout(patience.shutdown, open.shutdown()).await.is_err() {
            tracing::warn!("answers were still going on after {} s and are cut", patience.shutdown.as_secs());
        }
    }
}

/// Everything that one connection needs.
struct Connection {
    builder: auto::Builder<TokioExecutor>,
    service: TowerToHyperService<Router>,
    watcher: Watcher,
    /// Cancelled when connections are to be cut.
    cut: CancellationToken,
    patience: Timeouts,
}

impl Connection {
    /// Serves the requests of one client until it disconnects, or until the proxy shuts down.
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let stream = TimeoutStream::new(stream, self.patience.client_read, self.patience.idle);
        let connection = self.builder.serve_connection(TokioIo::new(stream), self.service);
        let connection = self.watcher.watch(connection.into_owned());
        if let Some(Err(error)) = self.cut.run_until_cancelled(connection).await {
            tracing::debug!(%error, "a connection broke");
        }
    }
}

/// Connections that may wait to be taken. One that finds no room asks again after a second, and then ever later.
const LISTEN_BACKLOG: u32 = 4096;

fn bind_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A proxy that is started again takes the port of the one before it.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Too many open files do not go away by asking again at once; a client that hung up does.
async fn back_off_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "a connection could not be taken");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
