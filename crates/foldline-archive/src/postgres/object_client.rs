//! Clients of object stores: the URL, the variables with keys, and HTTP connections.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
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
            builder.with_http_connector(TlsConnector).with_retry(RETRIES).build().map(|it| Arc::new(it) as _)
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
struct TlsConnector;

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
        Ok(HttpClient::new(HyperService(client)))
    }
}

/// An HTTP client.
#[derive(Debug)]
struct HyperService(Client<HttpsConnector<TcpConnector>, HttpRequestBody>);

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
            let response = self.0.request(request).await.map_err(|error| {
                let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
                HttpError::new(kind, error)
            })?;
            Ok(response.map(|body| {
                HttpResponseBody::new(body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error)))
            }))
        })
    }
}
