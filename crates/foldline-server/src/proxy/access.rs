//! Who may come in.
//!
//! Without a token only this machine can connect, because the proxy listens there alone. With one,
//! every request must show it: in the header `x-foldline-token`, or as `/token/TOKEN` in front of the
//! path, for clients that can set a base URL and no header. It never travels on.

use std::net::{IpAddr, SocketAddr};

use hyper::Uri;
use hyper::header::{HOST, HeaderMap};
use hyper::http::request::Parts;

use super::headers::TOKEN;

/// The token that lets clients in, known by its hash: comparing hashes tells nothing by its duration.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    token: Option<blake3::Hash>,
    listens_here_alone: bool,
}

/// What is in front of a path that carries the token.
const IN_PATH: &str = "/token/";

impl Door {
    pub(crate) fn new(token: Option<&str>, listen: SocketAddr) -> Self {
        Self { token: token.map(|it| blake3::hash(it.as_bytes())), listens_here_alone: listen.ip().is_loopback() }
    }

    /// Whether the request may come in. A token in front of its path is taken off.
    pub(crate) fn lets_in(&self, parts: &mut Parts) -> bool {
        let in_path = take_from_path(&mut parts.uri);
        let Some(token) = self.token else { return true };
        let in_header = parts.headers.get(TOKEN).map(|it| blake3::hash(it.as_bytes()));
        [in_header, in_path].into_iter().flatten().any(|shown| shown == token)
    }

    /// Whether a request for what the proxy itself knows may be answered. A page in a browser can be
    /// made to ask this machine under another host's name; it is not answered.
    pub(crate) fn is_asked_directly(&self, headers: &HeaderMap) -> bool {
        if !self.listens_here_alone || self.token.is_some() {
            return true;
        }
        let host = headers.get(HOST).and_then(|it| it.to_str().ok());
        host.is_none_or(|host| {
            let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|it| it.is_ascii_digit()));
            let name = name.map_or(host, |(name, _)| name);
            let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
            name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|it| it.is_loopback())
        })
    }
}

fn take_from_path(uri: &mut Uri) -> Option<blake3::Hash> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(IN_PATH)?;
    let (token, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let shown = blake3::hash(token.as_bytes());
    let path = if path.is_empty() { "/" } else { path }.parse().ok();
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = path;
    *uri = Uri::from_parts(parts).unwrap_or_default();
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn parts(uri: &str, token: Option<&str>) -> Parts {
        let request = Request::builder().uri(uri);
        let request = match token {
            Some(token) => request.header(TOKEN, token),
            None => request,
        };
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_token_is_shown_in_a_header_or_in_front_of_the_path() {
        let door = Door::new(Some("open sesame"), ([0, 0, 0, 0], 80).into());
        assert!(door.lets_in(&mut parts("/v1/messages", Some("open sesame"))));
        assert!(!door.lets_in(&mut parts("/v1/messages", Some("open"))));
        assert!(!door.lets_in(&mut parts("/v1/messages", None)));
        let door = Door::new(Some("t1"), ([0, 0, 0, 0], 80).into());
        let mut shown = parts("/token/t1/v1/messages?beta=true", None);
        assert!(door.lets_in(&mut shown));
        assert_eq!(shown.uri, "/v1/messages?beta=true");
        assert!(!door.lets_in(&mut parts("/token/t2/v1/messages", None)));
    }

    #[test]
    fn what_the_proxy_knows_is_not_told_under_a_foreign_name() {
        let asked = |host: &str| {
            let request = Request::builder().header(HOST, host).body(()).unwrap();
            Door::new(None, ([127, 0, 0, 1], 80).into()).is_asked_directly(request.headers())
        };
        for host in ["localhost", "localhost:8787", "127.0.0.1:1", "[::1]:8787", "[::1]"] {
            assert!(asked(host), "{host}");
        }
        for host in ["evil.example", "evil.example:8787", "localhost.evil.example", "10.0.0.1"] {
            assert!(!asked(host), "{host}");
        }
    }
}
