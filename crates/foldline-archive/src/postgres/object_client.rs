//! Clients of object stores: the URL, the variables with keys, and HTTP connections.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::TokioExecutor;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};

use crate::error::{Error, ErrorKind};
use crate::object_storage::ObjectStorage;
use crate::permissions;
use crate::postgres::connection;

/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest time without an answer to a request, and without another part of the answer. Maintenance has no other limit for
/// single requests, and holds locks meanwhile.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Further attempts of a request that failed. The caller's limit ends them earlier.
const RETRIES: RetryConfig = RetryConfig {
    backoff: object_store::BackoffConfig {
        init_backoff: Duration::from_millis(50),
        max_backoff: Duration::from_secs(1),
        base: 2.0,
    },
    max_retries: 3,
    retry_timeout: Duration::from_secs(10),
};

/// Returns a client of the store, and the prefix of its objects.
pub(crate) fn create_client(storage: &ObjectStorage) -> Result<(Arc<dyn ObjectStore>, ObjectPath), Error> {
    let url = storage.url.as_str();
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let (_, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let invalid = |why: String| {
        let location = storage.location();
        Error::new(ErrorKind::InvalidInput, format!("{location} cannot be used as an object store: {why}"))
    };
    /// Applies the variables that the builder knows.
    macro_rules! build {
        ($builder:ty) => {{
            let known = |builder: $builder, (name, value): &(String, String)| match name.to_ascii_lowercase().parse() {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            };
            let builder = storage.variables.iter().fold(<$builder>::new().with_url(url), known);
            builder
                .with_http_connector(TlsConnector { timeout: REQUEST_TIMEOUT })
                .with_retry(RETRIES)
                .build()
                .map(|it| Arc::new(it) as _)
        }};
    }
    let client = match scheme {
        "file" => return open_folder(rest).map(|client| (client, ObjectPath::default())),
        "s3" | "s3a" => build!(AmazonS3Builder),
        "gs" => build!(GoogleCloudStorageBuilder),
        "az" | "abfs" | "abfss" => build!(MicrosoftAzureBuilder),
        _ => return Err(invalid("its URL begins with none of s3://, gs://, az://, file:///".into())),
    };
    let client: Arc<dyn ObjectStore> = client.map_err(|error: object_store::Error| invalid(error.to_string()))?;
    let prefix = ObjectPath::parse(prefix.trim_matches('/')).map_err(|error| invalid(error.to_string()))?;
    Ok((client, prefix))
}

/// Opens a folder as an object store, and creates it if it does not exist. Only its owner can access it.
fn open_folder(path: &str) -> Result<Arc<dyn ObjectStore>, Error> {
    let path = if cfg!(windows) { path.trim_start_matches('/') } else { path };
    let folder = std::path::Path::new(path);
    if !folder.is_absolute() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "a folder of objects has a URL with three slashes: file:///..",
        ));
    }
    permissions::create_private_dir(folder)?;
    let client = LocalFileSystem::new_with_prefix(folder)
        .map_err(|error| Error::new(ErrorKind::Io, format!("could not open {path}: {error}")))?;
    Ok(Arc::new(client.with_fsync(true)))
}

/// Creates HTTP clients with the TLS of the archive's connections.
#[derive(Debug)]
struct TlsConnector {
    timeout: Duration,
}

impl HttpConnector for TlsConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |error: Error| object_store::Error::Generic { store: "TLS", source: Box::new(error) };
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        let tls = HttpsConnectorBuilder::new().with_tls_config(connection::tls_config().map_err(failed)?);
        let scheme = if allows_http { tls.https_or_http() } else { tls.https_only() };
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(scheme.enable_http1().wrap_connector(tcp));
        Ok(HttpClient::new(HyperService { client, timeout: self.timeout }))
    }
}

/// An HTTP client.
#[derive(Debug)]
struct HyperService {
    client: Client<HttpsConnector<TcpConnector>, HttpRequestBody>,
    timeout: Duration,
}

impl HttpService for HyperService {
    fn call<'s, 'f>(
        &'s self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(async {
            let answer = tokio::time::timeout(self.timeout, self.client.request(request)).await;
            let answer = answer.map_err(|_| timeout_error(self.timeout))?;
            let response = answer.map_err(|error| {
                let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
                HttpError::new(kind, error)
            })?;
            let timeout = self.timeout;
            Ok(response.map(|body| {
                let frames = stream::unfold(body, move |mut body| async move {
                    let frame = match tokio::time::timeout(timeout, body.frame()).await {
                        Ok(frame) => frame?.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error)),
                        Err(_) => Err(timeout_error(timeout)),
                    };
                    Some((frame, body))
                });
                HttpResponseBody::new(StreamBody::new(frames))
            }))
        })
    }
}

fn timeout_error(timeout: Duration) -> HttpError {
    let message = format!("no answer within {} seconds", timeout.as_secs_f32());
    HttpError::new(HttpErrorKind::Timeout, Error::new(ErrorKind::Unavailable, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt;
    use std::time::Instant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Gets an object of a server that sends this much and then nothing, and returns the error.
    async fn error_after(sent: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            let _ = connection.read(&mut head).await.unwrap();
            connection.write_all(sent.as_bytes()).await.unwrap();
            std::future::pending::<()>().await;
        });
        let store = AmazonS3Builder::new()
            .with_url("s3://bucket")
            .with_endpoint(format!("http://127.0.0.1:{port}"))
            .with_allow_http(true)
            .with_access_key_id("id")
            .with_secret_access_key("secret")
            .with_http_connector(TlsConnector { timeout: Duration::from_millis(100) })
            .with_retry(RetryConfig { max_retries: 0, ..RETRIES })
            .build()
            .unwrap();
        let get = async { store.get(&ObjectPath::from("object")).await?.bytes().await };
        let begin = Instant::now();
        let error = tokio::time::timeout(Duration::from_secs(10), get).await.unwrap().unwrap_err();
        assert!(begin.elapsed() >= Duration::from_millis(100));
        error.to_string()
    }

    /// A request waited for as long as its caller did, which is ten minutes in maintenance.
    #[test]
    fn silent_servers_time_out() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let nothing = error_after("").await;
            assert!(nothing.contains("no answer within 0.1 seconds"), "{nothing}");
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\netag: \"a\"\r\n\
                last-modified: Wed, 18 Nov 2026 00:00:00 GMT\r\n\r\npart";
            let part = error_after(head).await;
            assert!(part.contains("no answer within 0.1 seconds"), "{part}");
        });
    }
}
