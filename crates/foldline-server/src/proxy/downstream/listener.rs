//! Accepting connections: limits, TLS, and graceful shutdown.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use foldline::tokens::{TokenCounter, Vocabulary};
use foldline_archive::Archive;
use futures_util::future::BoxFuture;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::proxy::admin::stats::StatsHandle;
use crate::proxy::downstream::connection_limit::ConnectionLimit;
use crate::proxy::downstream::half_close::{HalfClose, ObservedService};
use crate::proxy::downstream::io_timeout::TimeoutStream;
use crate::proxy::downstream::tenancy::Tenancy;
use crate::proxy::downstream::tls::{GatewayCertificate, TlsReload};
use crate::proxy::downstream::token_reload::TokenReload;
use crate::proxy::handler::proxy_service;
use crate::proxy::settings::{ProxySettings, Timeouts};
use crate::proxy::state::AppState;

/// Checks that only known clients can send requests that get a credential of the proxy, and that AWS credentials can be
/// read.
async fn check_own_credentials(settings: &ProxySettings) -> io::Result<()> {
    let is_local = settings.listen.ip().is_loopback() && settings.allowed_hosts.is_empty();
    let is_open = settings.is_open() && !is_local;
    if let Some((name, _)) = settings.own_credentials().next().filter(|_| is_open) {
        let reason = format!(
            "requests to the upstream {name} would get a credential of this machine for clients from elsewhere: set tokens \
             with --token-file, or listen on 127.0.0.1 without --allow-host"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    for (name, signer) in settings.signers() {
        let checked = signer.check().await;
        checked.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, format!("upstream {name}: {error}")))?;
    }
    Ok(())
}

/// Loads the TLS files; none without TLS.
fn load_tls(settings: &ProxySettings) -> io::Result<Option<TlsReload>> {
    let authorities = settings.gateway_authorities.as_deref();
    match &settings.tls {
        Some(files) => TlsReload::new(files, authorities).map(Some),
        None if authorities.is_some() => {
            let reason = "certificates of gateways need TLS; set tls-cert and tls-key";
            Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
        }
        None => Ok(None),
    }
}

/// A proxy that is bound to its address.
///
/// ```
/// use foldline_server::proxy::{Proxy, ProxySettings};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let settings = ProxySettings { listen: ([127, 0, 0, 1], 0).into(), ..ProxySettings::default() };
/// let proxy = Proxy::bind(settings, None).await?;
/// assert!(proxy.address().port() > 0);
/// proxy.run(async { /* wait for a signal */ }).await;
/// # std::io::Result::Ok(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Proxy {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsReload>,
    state: Arc<AppState>,
    _stop_guard: DropGuard,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("address", &self.address)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// Binds the listen address. Originals are written to the archive; without one, folded text cannot be unfolded.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) if other machines could connect and no token is set; otherwise
    /// an error if there are no AWS credentials to sign with, the address is in use, or if a TLS file, a certificate of the system or the archive cannot be read.
    pub async fn bind(settings: ProxySettings, archive: Option<Archive>) -> io::Result<Self> {
        check_own_credentials(&settings).await?;
        if !settings.listen.ip().is_loopback() && settings.is_open() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{} accepts connections from other machines: set a token, or listen on 127.0.0.1",
                    settings.listen
                ),
            ));
        }
        let tls = load_tls(&settings)?;
        let listen = settings.listen;
        let state = AppState::new(settings, archive)?;
        let listener = bind_listener(listen)?;
        let address = listener.local_addr()?;
        let stop_guard = state.stop.clone().drop_guard();
        Ok(Self { listener, address, tls, state: Arc::new(state), _stop_guard: stop_guard })
    }

    /// Returns the address that the proxy listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the rule by which requests share originals.
    pub fn tenancy(&self) -> Tenancy {
        self.state.tenants.tenancy()
    }

    /// Returns a handle with which renewed TLS files are loaded; none without TLS.
    pub fn tls_reload(&self) -> Option<TlsReload> {
        self.tls.clone()
    }

    /// Returns a handle with which the tokens are replaced; none if requests need no token.
    pub fn token_reload(&self) -> Option<TokenReload> {
        (!self.state.settings.is_open()).then(|| TokenReload::new(self.state.clone()))
    }

    /// Returns a handle to the statistics, which stays valid after the proxy has stopped.
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle(self.state.clone())
    }

    /// Serves until `stop` completes, then waits for open responses up to the shutdown timeout. After that the remaining
    /// connections are closed, and their folds are cancelled.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        self.run_until(Box::pin(stop)).await;
    }

    /// Serves until `stop` completes. The future is boxed, so that this crate alone compiles it.
    fn run_until<'a>(self, stop: BoxFuture<'a, ()>) -> BoxFuture<'a, ()> {
        Box::pin(self.serve_until(stop))
    }

    async fn serve_until(self, mut stop: BoxFuture<'_, ()>) {
        // Loading the largest vocabulary takes a tenth of a second, which the first request would wait for. Counting
        // a text builds the tables of the thread, too.
        drop(tokio::task::spawn_blocking(|| Vocabulary::o200k().count(WARM_UP_TEXT)));
        // The first look at the dashboard would wait for the journal.
        if let Some(tenant) = self.state.tenants.only_tenant() {
            self.state.activity.get(tenant.key.0, tenant.archive.as_ref()).follow();
        }
        let timeouts = self.state.settings.timeouts;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(timeouts.client_read);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(20));
        let service = TowerToHyperService::new(proxy_service(self.state.clone()));
        let open = GracefulShutdown::new();
        let abort = CancellationToken::new();
        let _abort_on_return = abort.clone().drop_guard();
        let limit = ConnectionLimit::for_process();
        loop {
            let accept = async { (limit.acquire().await, self.listener.accept().await) };
            let (permit, stream) = tokio::select! {
                accepted = accept => match accepted {
                    (permit, Ok((stream, _))) => (permit, stream),
                    (_, Err(error)) => {
                        back_off_after(&error).await;
                        continue;
                    }
                },
                () = &mut stop => break,
            };
            let _ = stream.set_nodelay(true);
            let connection = Connection {
                builder: builder.clone(),
                service: service.clone(),
                watcher: open.watcher(),
                abort: abort.clone(),
                timeouts,
                _permit: permit,
            };
            match self.tls.as_ref().map(TlsReload::acceptor) {
                None => drop(tokio::spawn(connection.serve(stream, None))),
                Some(tls) => drop(tokio::spawn(async move {
                    match tokio::time::timeout(timeouts.client_read, tls.accept(stream)).await {
                        Ok(Ok(stream)) => {
                            let gateway = GatewayCertificate::from_connection(stream.get_ref().1);
                            connection.serve(stream, gateway).await;
                        }
                        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                        Err(_) => tracing::debug!("TLS handshake timed out"),
                    }
                })),
            }
        }
        drop((self.listener, self._stop_guard));
        if tokio::time::timeout(timeouts.shutdown, open.shutdown()).await.is_err() {
            tracing::warn!("responses were still open after {} s and are aborted", timeouts.shutdown.as_secs());
        }
        if self.state.traces.is_on() {
            let state = self.state.clone();
            let _ = tokio::task::spawn_blocking(move || state.traces.flush()).await;
        }
    }
}

/// The parts that one connection needs.
struct Connection {
    builder: auto::Builder<TokioExecutor>,
    service: TowerToHyperService<Router>,
    watcher: Watcher,
    /// Cancelled to abort the connection.
    abort: CancellationToken,
    timeouts: Timeouts,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Serves the requests of one client until it disconnects, or until the proxy shuts down.
    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        gateway: Option<GatewayCertificate>,
    ) {
        let half_close = HalfClose::default();
        let stream = TimeoutStream::new(stream, self.timeouts.client_read, self.timeouts.idle, half_close.clone());
        let service = ObservedService { service: self.service, half_close, gateway };
        let connection = self.builder.serve_connection(TokioIo::new(stream), service);
        let connection = self.watcher.watch(connection.into_owned());
        if let Some(Err(error)) = self.abort.run_until_cancelled(connection).await {
            tracing::debug!(%error, "connection failed");
        }
    }
}

/// Length of the accept queue. A client whose SYN is dropped retries after a second, then at growing intervals.
const LISTEN_BACKLOG: u32 = 4096;

/// Text with words, numbers, punctuation and white space.
const WARM_UP_TEXT: &str = "fn main() {\n    let total = 1_024 + \"größer\".len(); // Don't\n\n\t}\n";

fn bind_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted proxy can bind the port of its predecessor.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Waits after an accept error that an immediate retry would repeat, such as too many open files.
async fn back_off_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
