//! A language model over HTTP, in any dialect.
//!
//! Bodies are written and parsed by the engine's wire code; this module only transports them. One call is one request:
//! the summarizer decides on retries, because it knows the remaining limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline::Message;
use foldline::conversation::ToolCall;
use foldline::wire::{ApiError, Format, OutgoingRequest, RequestRejection, Response};
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response as HttpResponse, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::model::{LanguageModel, ModelError, ModelErrorKind, ModelInfo, ModelRequest, ModelResponse, ResponseFuture};

/// Maximum bytes of a response.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// Timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of a model, and the credentials.
#[derive(Clone)]
pub struct ModelEndpoint {
    /// The API format.
    pub format: Format,
    /// The server, such as `https://api.openai.com` or `http://127.0.0.1:8080`, with or without the API version at the
    /// end (`/v1`, `/v4`).
    pub base_url: String,
    /// The name of the model.
    pub model: String,
    /// The key, if the server requires one.
    pub api_key: Option<String>,
    /// Additional headers; they replace default headers of the same name.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl fmt::Debug for ModelEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys and headers stay out of logs.
        let Self { format, base_url, model, .. } = self;
        f.debug_struct("ModelEndpoint")
            .field("format", format)
            .field("base_url", base_url)
            .field("model", model)
            .finish_non_exhaustive()
    }
}

/// Sends the requests of an [`HttpModel`]. A program with connections of its own, such as those through a proxy of the
/// network or with a client certificate, implements it.
pub trait HttpTransport: fmt::Debug + Send + Sync {
    /// Sends a request. The response has its whole body; one of more than `max_bytes` is an error, as are failures of the
    /// connection, each with its reason.
    fn send(&self, request: Request<Bytes>, max_bytes: usize) -> TransportFuture<'_>;
}

/// A pending response, or the reason why there is none.
pub type TransportFuture<'a> = BoxFuture<'a, Result<HttpResponse<Bytes>, String>>;

/// Direct connections, with the certificates of the system.
#[derive(Debug)]
struct DirectTransport(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl DirectTransport {
    fn new() -> Result<Self, ModelError> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_native_roots()
            .map_err(|error| {
                let message = format!("could not read the system's certificates: {error}");
                ModelError::new(ModelErrorKind::Refused, message)
            })?
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(connector);
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector)))
    }
}

impl HttpTransport for DirectTransport {
    fn send(&self, request: Request<Bytes>, max_bytes: usize) -> TransportFuture<'_> {
        Box::pin(async move {
            let response = self.0.request(request.map(Full::new)).await.map_err(|error| root_cause(&error))?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, max_bytes).collect().await.map_err(|error| error.to_string())?;
            Ok(HttpResponse::from_parts(parts, body.to_bytes()))
        })
    }
}

/// A language model over HTTP.
#[derive(Debug)]
pub struct HttpModel {
    endpoint: ModelEndpoint,
    url: Uri,
    info: ModelInfo,
    transport: Arc<dyn HttpTransport>,
}

impl HttpModel {
    /// Creates a model with the properties from the model table; see [`HttpModel::with_info`].
    ///
    /// # Errors
    ///
    /// The same as for [`HttpModel::with_info`].
    pub fn new(endpoint: ModelEndpoint) -> Result<Self, ModelError> {
        let info = ModelInfo::for_model(&endpoint.model);
        Self::with_info(endpoint, info)
    }

    /// Creates a model with the given window, meter, prices and tool style.
    ///
    /// # Errors
    ///
    /// [`ModelErrorKind::Refused`] if the base URL is not valid, or if the system's certificates cannot be read.
    pub fn with_info(endpoint: ModelEndpoint, info: ModelInfo) -> Result<Self, ModelError> {
        Self::with_transport(endpoint, info, Arc::new(DirectTransport::new()?))
    }

    /// Creates a model that is reached by a transport of the caller.
    ///
    /// # Errors
    ///
    /// [`ModelErrorKind::Refused`] if the base URL is not valid.
    pub fn with_transport(
        endpoint: ModelEndpoint,
        info: ModelInfo,
        transport: Arc<dyn HttpTransport>,
    ) -> Result<Self, ModelError> {
        let refused = |message: String| ModelError::new(ModelErrorKind::Refused, message);
        let url = endpoint_url(&endpoint)
            .parse::<Uri>()
            .map_err(|error| refused(format!("{} is not a valid server address: {error}", endpoint.base_url)))?;
        Ok(Self { endpoint, url, info, transport })
    }

    /// Returns the same model at another URL of its server, for example the caller's own URL with its query.
    pub fn with_url(self, url: Uri) -> Self {
        Self { url, ..self }
    }

    fn build_request(&self, request: &ModelRequest<'_>) -> Result<Request<Bytes>, ModelError> {
        let refused = |message: String| ModelError::new(ModelErrorKind::Refused, message);
        let outgoing = OutgoingRequest {
            model: &self.endpoint.model,
            system: request.system,
            messages: request.messages,
            tools: request.tools,
            max_output_tokens: request.max_output,
        };
        let body = outgoing.to_body(self.endpoint.format).map_err(|error| refused(error.to_string()))?;
        let mut request = Request::new(Bytes::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("foldline/", env!("CARGO_PKG_VERSION"))));
        let family = self.endpoint.format.dialect().family;
        if let Some(key) = &self.endpoint.api_key {
            let mut value = HeaderValue::from_str(&format!("{}{key}", family.key_prefix))
                .map_err(|_| refused("the API key is not a valid header value".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static(family.key_header), value);
        }
        for (name, value) in family.required_headers {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        for (name, value) in &self.endpoint.headers {
            headers.insert(name.clone(), value.clone());
        }
        Ok(request)
    }

    async fn send(&self, request: &ModelRequest<'_>) -> Result<ModelResponse, ModelError> {
        let request = self.build_request(request)?;
        let response = self.transport.send(request, MAX_RESPONSE_BYTES).await.map_err(|reason| {
            let message = format!("{} could not be reached: {reason}", self.endpoint.base_url);
            ModelError::new(ModelErrorKind::Unreachable, message)
        })?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        parse_response(self.endpoint.format, status, retry_after.map(Duration::from_secs), response.body())
    }
}

impl LanguageModel for HttpModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn complete<'a>(&'a self, request: &'a ModelRequest<'a>) -> ResponseFuture<'a> {
        Box::pin(self.send(request))
    }
}

/// Returns the URL of a call.
fn endpoint_url(endpoint: &ModelEndpoint) -> String {
    let base = endpoint.base_url.trim_end_matches('/');
    let is_version = |last: &str| {
        last.strip_prefix('v')
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let path = endpoint.format.dialect().turn_path(&endpoint.model);
    if path.starts_with('/') {
        return format!("{base}{path}");
    }
    let version = if base.rsplit('/').next().is_some_and(is_version) { "" } else { "/v1" };
    format!("{base}{version}/{path}")
}

/// Returns the innermost cause of an error; the outer messages carry no information.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Parses a response.
fn parse_response(
    format: Format,
    status: u16,
    retry_after: Option<Duration>,
    body: &[u8],
) -> Result<ModelResponse, ModelError> {
    if status >= 400 {
        return Err(api_failure(
            status,
            retry_after,
            &ApiError::parse(body),
            RequestRejection::from_body(status, body),
        ));
    }
    let unreadable = |error: foldline::Error| {
        ModelError::new(ModelErrorKind::InvalidResponse, format!("the server's response could not be parsed: {error}"))
    };
    let response = Response::parse(format, body).map_err(unreadable)?;
    if let Some(error) = &response.error {
        return Err(api_failure(status, retry_after, error, RequestRejection::from_error(None, error)));
    }
    let Message { parts, .. } = &response.message;
    let empty = parts.iter().all(|part| part.as_text().is_none_or(|text| text.trim().is_empty()));
    if let Some(overflow) = response.overflow(status).filter(|_| empty && response.calls().next().is_none()) {
        return Err(ModelError::new(ModelErrorKind::Overflow(overflow), "the window was full before the response"));
    }
    let owned = |call: &ToolCall<'_>| ToolCall {
        id: call.id.to_string().into(),
        name: call.name.to_string().into(),
        arguments: foldline::conversation::CallArguments::Json(call.arguments.as_str().to_owned().into()),
        signature: call.signature.clone(),
    };
    Ok(ModelResponse {
        text: response.text(),
        calls: response.calls().map(owned).collect(),
        usage: response.usage,
        stop: response.stop.map(|stop| stop.reason),
    })
}

fn api_failure(
    status: u16,
    retry_after: Option<Duration>,
    error: &ApiError,
    rejection: RequestRejection,
) -> ModelError {
    let message = format!("the server returned status {status}: {}", error.message);
    let kind = match (rejection, status) {
        (RequestRejection::Overflow(overflow), _) => ModelErrorKind::Overflow(overflow),
        (_, 408 | 409 | 425 | 429 | 500..) => ModelErrorKind::Busy(retry_after),
        // An error inside a successful response: overloaded, cut off, timed out.
        (_, ..400) => ModelErrorKind::Busy(retry_after),
        _ => ModelErrorKind::Refused,
    };
    ModelError::new(kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_version_is_added_once() {
        let address = |format, base: &str| {
            endpoint_url(&ModelEndpoint {
                format,
                base_url: base.into(),
                model: String::new(),
                api_key: None,
                headers: Vec::new(),
            })
        };
        assert_eq!(address(Format::OpenAiChat, "https://a/"), "https://a/v1/chat/completions");
        assert_eq!(address(Format::OpenAiResponses, "https://a/v1"), "https://a/v1/responses");
        assert_eq!(address(Format::OpenAiChat, "https://a/api/v4/"), "https://a/api/v4/chat/completions");
        assert_eq!(address(Format::Anthropic, "http://[::1]:1/vault"), "http://[::1]:1/vault/v1/messages");
    }
}
