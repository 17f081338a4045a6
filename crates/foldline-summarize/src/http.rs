//! A model behind one of the three APIs.
//!
//! Bodies are written and read by the engine's wire code; here is only the way to the server. One call is one
//! request: whether to ask again is decided by the summariser, which knows what is left of its limits.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use foldline::wire::{ApiError, Format, OutgoingRequest, RequestRejection, Response};
use foldline::{Message, ToolCall};
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::model::{LanguageModel, ModelError, ModelErrorKind, ModelInfo, ModelRequest, ModelResponse, ResponseFuture};

/// No answer of a model is longer.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// A connection that does not stand by then never will.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The version of the Anthropic API that is spoken.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// Where a model is, and who asks.
#[derive(Clone)]
pub struct ModelEndpoint {
    /// The API that it speaks.
    pub format: Format,
    /// The server, such as `https://api.openai.com` or `http://127.0.0.1:8080`; with the version of the API at its
    /// end (`/v1`, `/v4`) or without.
    pub base_url: String,
    /// The name of the model.
    pub model: String,
    /// The key, when the server wants one.
    pub api_key: Option<String>,
    /// Headers that are sent as well, in the place of ours where they have the same name.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl fmt::Debug for ModelEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys and headers stay out of logs.
        let Self { format, base_url: base, model, .. } = self;
        f.debug_struct("Endpoint").field("format", format).field("base", base).field("model", model).finish()
    }
}

/// A model that is asked over HTTP.
#[derive(Debug)]
pub struct HttpModel {
    endpoint: ModelEndpoint,
    url: Uri,
    info: ModelInfo,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl HttpModel {
    /// A model of which the table of models knows the rest; see [`HttpModel::with_traits`].
    pub fn new(endpoint: ModelEndpoint) -> Result<Self, ModelError> {
        let traits = ModelInfo::for_model(&endpoint.model);
        Self::with_info(endpoint, traits)
    }

    /// A model of which the caller knows the window, the tokens, the prices and how it speaks.
    pub fn with_info(endpoint: ModelEndpoint, traits: ModelInfo) -> Result<Self, ModelError> {
        let refused = |message: String| ModelError::new(ModelErrorKind::Refused, message);
        let address = endpoint_url(&endpoint)
            .parse::<Uri>()
            .map_err(|error| refused(format!("{} is not the address of a server: {error}", endpoint.base_url)))?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_native_roots()
            .map_err(|error| refused(format!("the system's certificates could not be read: {error}")))?
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(connector);
        Ok(Self {
            endpoint,
            url: address,
            info: traits,
            client: Client::builder(TokioExecutor::new()).build(connector),
        })
    }

    /// The same model at another address of its server: where the caller's own requests go, query and all.
    pub fn with_url(self, address: Uri) -> Self {
        Self { url: address, ..self }
    }

    fn build_request(&self, question: &ModelRequest<'_>) -> Result<Request<Full<Bytes>>, ModelError> {
        let refused = |message: String| ModelError::new(ModelErrorKind::Refused, message);
        let draft = OutgoingRequest {
            model: &self.endpoint.model,
            system: question.system,
            messages: question.messages,
            tools: question.tools,
            max_output_tokens: question.max_output,
        };
        let body = draft.to_body(self.endpoint.format).map_err(|error| refused(error.to_string()))?;
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("foldline/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = &self.endpoint.api_key {
            let (name, value) = match self.endpoint.format {
                Format::Anthropic => (HeaderName::from_static("x-api-key"), key.clone()),
                Format::OpenAiChat | Format::OpenAiResponses => (AUTHORIZATION, format!("Bearer {key}")),
            };
            let mut value =
                HeaderValue::from_str(&value).map_err(|_| refused("the key holds what no header can".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        if self.endpoint.format == Format::Anthropic {
            headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static(ANTHROPIC_VERSION));
        }
        for (name, value) in &self.endpoint.headers {
            headers.insert(name.clone(), value.clone());
        }
        Ok(request)
    }

    async fn send(&self, question: &ModelRequest<'_>) -> Result<ModelResponse, ModelError> {
        let request = self.build_request(question)?;
        let lost = |error: &dyn fmt::Display| {
            let message = format!("{} could not be reached: {error}", self.endpoint.base_url);
            ModelError::new(ModelErrorKind::Unreachable, message)
        };
        let response = self.client.request(request).await.map_err(|error| lost(&root_cause(&error)))?;
        let status = response.status().as_u16();
        let later = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body =
            Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await.map_err(|error| lost(&error))?;
        parse_response(self.endpoint.format, status, later.map(Duration::from_secs), &body.to_bytes())
    }
}

impl LanguageModel for HttpModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn complete<'a>(&'a self, question: &'a ModelRequest<'a>) -> ResponseFuture<'a> {
        Box::pin(self.send(question))
    }
}

/// The address of the call.
fn endpoint_url(endpoint: &ModelEndpoint) -> String {
    let base = endpoint.base_url.trim_end_matches('/');
    let is_version = |last: &str| {
        last.strip_prefix('v').is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let version = if base.rsplit('/').next().is_some_and(is_version) { "" } else { "/v1" };
    let path = match endpoint.format {
        Format::OpenAiChat => "chat/completions",
        Format::OpenAiResponses => "responses",
        Format::Anthropic => "messages",
    };
    format!("{base}{version}/{path}")
}

/// The cause behind an error; those above it only say that there is one.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// What a response says.
fn parse_response(
    format: Format,
    status: u16,
    later: Option<Duration>,
    body: &[u8],
) -> Result<ModelResponse, ModelError> {
    if status >= 400 {
        return Err(api_failure(status, later, &ApiError::parse(body), RequestRejection::from_body(status, body)));
    }
    let unreadable = |error: foldline::Error| {
        ModelError::new(ModelErrorKind::InvalidResponse, format!("the server answered with something else: {error}"))
    };
    let response = Response::parse(format, body).map_err(unreadable)?;
    if let Some(error) = &response.error {
        return Err(api_failure(status, later, error, RequestRejection::from_error(None, error)));
    }
    let Message { parts, .. } = &response.message;
    let empty = parts.iter().all(|part| part.as_text().is_none_or(|text| text.trim().is_empty()));
    if let Some(overflow) = response.overflow(status).filter(|_| empty && response.calls().next().is_none()) {
        return Err(ModelError::new(ModelErrorKind::Overflow(overflow), "the window was full before the answer"));
    }
    let owned = |call: &ToolCall<'_>| ToolCall {
        id: call.id.to_string().into(),
        name: call.name.to_string().into(),
        arguments: foldline::CallArguments::Json(call.arguments.as_str().to_owned().into()),
    };
    Ok(ModelResponse {
        text: response.text(),
        calls: response.calls().map(owned).collect(),
        usage: response.usage,
        stop: response.stop.map(|stop| stop.reason),
    })
}

fn api_failure(status: u16, later: Option<Duration>, error: &ApiError, refusal: RequestRejection) -> ModelError {
    let message = format!("the server answered {status}: {}", error.message);
    let kind = match (refusal, status) {
        (RequestRejection::Overflow(overflow), _) => ModelErrorKind::Overflow(overflow),
        (_, 408 | 409 | 425 | 429 | 500..) => ModelErrorKind::Busy(later),
        // An error inside a good response: overloaded, cut off, out of time.
        (_, ..400) => ModelErrorKind::Busy(later),
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
