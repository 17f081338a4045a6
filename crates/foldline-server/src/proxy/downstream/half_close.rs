//! Clients that close their sending half after a request and wait for the response.
//!
//! At the socket, such a client looks the same as one that has left. Only a client that announced not to use the
//! connection again (`Connection: close`, or HTTP/1.0) has a reason to do it, so only its end of input is hidden; for all
//! others it cancels the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::body::Incoming;
use hyper::header::CONNECTION;
use hyper::service::Service;
use hyper::{Request, Version};

use crate::proxy::downstream::tls::GatewayCertificate;

/// A flag that hides the end of a client's input, shared by a connection and its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct HalfClose(Arc<AtomicBool>);

impl HalfClose {
    /// Returns true if the client may have closed its sending half only.
    pub(crate) fn is_expected(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Records what a request announces.
    fn observe<B>(&self, request: &Request<B>) {
        let connection = request.headers().get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        let mut options = connection.flat_map(|value| value.split(',')).map(str::trim);
        let is_last = match request.version() {
            Version::HTTP_10 => !options.any(|option| option.eq_ignore_ascii_case("keep-alive")),
            Version::HTTP_11 => options.any(|option| option.eq_ignore_ascii_case("close")),
            _ => false,
        };
        self.0.store(is_last, Ordering::Relaxed);
    }
}

/// A service that records what requests announce before they are handled, and adds what is known of their connection.
#[derive(Clone)]
pub(crate) struct ObservedService<S> {
    pub(crate) service: S,
    pub(crate) half_close: HalfClose,
    pub(crate) gateway: Option<GatewayCertificate>,
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for ObservedService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<Incoming>) -> S::Future {
        self.half_close.observe(&request);
        if let Some(gateway) = self.gateway {
            request.extensions_mut().insert(gateway);
        }
        self.service.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_close_is_expected_after_the_last_request() {
        let is_expected = |version: Version, connection: &str| {
            let half_close = HalfClose::default();
            half_close.observe(&Request::builder().version(version).header(CONNECTION, connection).body(()).unwrap());
            half_close.is_expected()
        };
        assert!(is_expected(Version::HTTP_11, "TE, Close") && is_expected(Version::HTTP_10, ""));
        assert!(!is_expected(Version::HTTP_11, "keep-alive") && !is_expected(Version::HTTP_10, "Keep-Alive"));
        assert!(!is_expected(Version::HTTP_2, "close"));
    }
}
