//! Requests of the proxy's own models, such as those that write summaries, over the connections to providers: through the
//! proxy of the network, with the certificates of the settings, and signed if the upstream requires it.

use std::fmt;
use std::io;

use bytes::Bytes;
use foldline_summarize::{HttpTransport, TransportFuture};
use http_body_util::{BodyExt, Limited};
use hyper::{Request, Response};

use crate::proxy::settings::Timeouts;
use crate::proxy::upstream::aws::signer::AwsSigner;
use crate::proxy::upstream::client::{UpstreamClient, UpstreamRequest};
use crate::proxy::upstream::outbound::OutboundSettings;

/// Sends requests of models in the way that the settings state for providers.
#[derive(Clone)]
pub struct OutboundTransport {
    client: UpstreamClient,
    signer: Option<AwsSigner>,
}

impl fmt::Debug for OutboundTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundTransport").field("signer", &self.signer).finish_non_exhaustive()
    }
}

impl OutboundTransport {
    /// Creates a transport with connections of its own.
    ///
    /// # Errors
    ///
    /// A certificate of the settings cannot be used.
    pub fn new(outbound: &OutboundSettings) -> io::Result<Self> {
        Ok(Self { client: UpstreamClient::new(Timeouts::default(), outbound)?, signer: None })
    }

    /// Creates a transport over the connections of a proxy.
    pub(crate) fn for_client(client: UpstreamClient, signer: Option<AwsSigner>) -> Self {
        Self { client, signer }
    }
}

impl HttpTransport for OutboundTransport {
    fn send(&self, request: Request<Bytes>, max_bytes: usize) -> TransportFuture<'_> {
        let (parts, body) = request.into_parts();
        let signer = self.signer.clone();
        let request = UpstreamRequest { method: parts.method, uri: parts.uri, headers: parts.headers, body, signer };
        Box::pin(async move {
            let response = self.client.send(&request).await.map_err(|error| error.to_string())?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, max_bytes).collect().await.map_err(|error| error.to_string())?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        })
    }
}
