//! Which requests are let in, and by which token.
//!
//! Without tokens only this machine can connect, because the proxy listens on loopback alone. With tokens every request
//! must carry one: in the header `x-foldline-token`, or as `/token/TOKEN` in front of the path, for clients that can
//! set a base URL and no header; for the proxy's own paths also as `Authorization: Bearer`. A token is removed from the
//! request before anything else looks at it, so that it is neither logged nor forwarded.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::Uri;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap};
use hyper::http::request::Parts;

use crate::proxy::downstream::headers::TOKEN;

/// A token that lets clients in. Its name is that of a tenant, and remains when the token is replaced.
///
/// ```
/// use foldline_server::proxy::AccessToken;
///
/// let tokens = AccessToken::parse_list("alice = 4f1c9a\nbob: 77e0d2\n# a token without a name\n91ab3c\n")?;
/// let names: Vec<_> = tokens.iter().map(AccessToken::name).collect();
/// assert_eq!(names, [Some("alice"), Some("bob"), None]);
/// assert!(!format!("{tokens:?}").contains("4f1c9a"));
/// # Ok::<(), foldline_server::proxy::BadToken>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken {
    name: Option<String>,
    secret: String,
}

/// A token or its name that cannot be used. The message does not repeat the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadToken(String);

/// Longest name of a token, in characters.
const MAX_NAME_CHARS: usize = 64;

impl AccessToken {
    /// Returns a token, with the name of a tenant where it has one.
    ///
    /// # Errors
    /// When the name has other characters than letters, digits and `-_.@`, or the token has other than visible ASCII
    /// characters.
    pub fn new(name: Option<&str>, secret: &str) -> Result<Self, BadToken> {
        if let Some(name) = name.filter(|name| !is_name(name)) {
            let name: String = name.chars().take(MAX_NAME_CHARS).collect();
            return Err(BadToken(format!(
                "\"{name}\" cannot name a token: use 1 to {MAX_NAME_CHARS} letters, digits and the signs - _ . @"
            )));
        }
        let fits = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        if secret.is_empty() || !secret.bytes().all(fits) {
            let of = name.map_or(String::new(), |name| format!(" of {name}"));
            return Err(BadToken(format!("the token{of} is empty or has spaces, commas or characters beyond ASCII")));
        }
        Ok(Self { name: name.map(str::to_owned), secret: secret.to_owned() })
    }

    /// Parses tokens, separated by line breaks or commas: `NAME = TOKEN`, `NAME:TOKEN`, or `TOKEN` alone. Empty lines
    /// and lines that begin with `#` are skipped. A name may have several tokens, so that one can be replaced while the
    /// other is still in use.
    ///
    /// # Errors
    /// When a token or a name cannot be used, or two names have the same token.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, BadToken> {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let entries = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|entry| !entry.is_empty());
        let tokens = entries.map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        Self::check_distinct(&tokens)?;
        Ok(tokens)
    }

    /// Checks that no token belongs to two tenants.
    pub(crate) fn check_distinct(tokens: &[Self]) -> Result<(), BadToken> {
        for (at, one) in tokens.iter().enumerate() {
            if let Some(other) = tokens[..at].iter().find(|other| other.secret == one.secret && other.name != one.name)
            {
                let name = |token: &Self| token.name.clone().unwrap_or_else(|| "no name".to_owned());
                return Err(BadToken(format!("{} and {} have the same token", name(other), name(one))));
            }
        }
        Ok(())
    }

    /// Returns its name, where it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn parse(entry: &str) -> Result<Self, BadToken> {
        let named = entry.split_once(['=', ':']).map(|(name, secret)| (name.trim(), secret.trim()));
        // A token that ends in the padding of base64 has no name in front of it.
        let named = named.filter(|(name, secret)| is_name(name) && secret.bytes().any(|byte| byte != b'='));
        match named {
            Some((name, secret)) => Self::new(Some(name), secret),
            None => Self::new(None, entry),
        }
    }
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(fits)
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessToken").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Display for BadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadToken {}

/// The tokens that let clients in, known by their hashes: comparing hashes takes the same time for every guess.
#[derive(Clone, Debug)]
pub(crate) struct TokenAuth {
    tokens: Vec<KnownToken>,
    is_loopback: bool,
}

#[derive(Clone, Debug)]
struct KnownToken {
    hash: blake3::Hash,
    name: Option<Arc<str>>,
}

/// The way by which a request was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// No tokens are set.
    Open,
    /// A token, with its name where it has one.
    Token(Option<Arc<str>>),
}

/// What is in front of a path that carries the token.
const TOKEN_PATH_PREFIX: &str = "/token/";

impl TokenAuth {
    pub(crate) fn new(tokens: &[AccessToken], listen: SocketAddr) -> Self {
        let known = |token: &AccessToken| KnownToken {
            hash: blake3::hash(token.secret.as_bytes()),
            name: token.name.as_deref().map(Arc::from),
        };
        Self { tokens: tokens.iter().map(known).collect(), is_loopback: listen.ip().is_loopback() }
    }

    /// Lets a request in, or returns `None`. Tokens are taken out of the request, wherever they are. On paths that begin
    /// with `own` a token may also come as `Authorization: Bearer`, a header that providers need for their own keys.
    pub(crate) fn admit(&self, parts: &mut Parts, own: &str) -> Option<Admission> {
        let in_path = strip_path_token(&mut parts.uri);
        let in_header = parts.headers.remove(TOKEN).map(|it| blake3::hash(it.as_bytes()));
        let bearer = bearer(&parts.headers).map(blake3::hash).and_then(|shown| self.find(shown));
        if bearer.is_some() {
            parts.headers.remove(AUTHORIZATION);
        }
        if self.tokens.is_empty() {
            return Some(Admission::Open);
        }
        let bearer = bearer.filter(|_| parts.uri.path().starts_with(own));
        let shown = [in_header, in_path].into_iter().flatten().find_map(|shown| self.find(shown));
        shown.or(bearer).map(|token| Admission::Token(token.name.clone()))
    }

    /// Returns the token with this hash. All of them are compared, so that the time does not depend on which it is.
    fn find(&self, shown: blake3::Hash) -> Option<&KnownToken> {
        self.tokens.iter().fold(None, |found, token| if token.hash == shown { Some(token) } else { found })
    }

    /// Whether a request for what the proxy itself knows may be answered. A page in a browser can be
    /// made to ask this machine under another host's name; it is not answered.
    pub(crate) fn allows_host(&self, headers: &HeaderMap) -> bool {
        if !self.is_loopback || !self.tokens.is_empty() {
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

/// Returns the credential of `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, credential) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| credential.trim_ascii())
}

fn strip_path_token(uri: &mut Uri) -> Option<blake3::Hash> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(TOKEN_PATH_PREFIX)?;
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

    const OWN: &str = "/foldline/";

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let request =
            headers.iter().fold(Request::builder().uri(uri), |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    fn door(tokens: &str) -> TokenAuth {
        TokenAuth::new(&AccessToken::parse_list(tokens).unwrap(), ([127, 0, 0, 1], 80).into())
    }

    fn named(name: &str) -> Option<Admission> {
        Some(Admission::Token(Some(name.into())))
    }

    #[test]
    fn token_comes_in_a_header_or_in_front_of_the_path() {
        let door = door("alice=t1\nbob=t2\nt3");
        let header = |token| parts("/v1/messages", &[("x-foldline-token", token)]);
        assert_eq!(door.admit(&mut header("t1"), OWN), named("alice"));
        assert_eq!(door.admit(&mut header("t2"), OWN), named("bob"));
        assert_eq!(door.admit(&mut header("t3"), OWN), Some(Admission::Token(None)));
        assert_eq!(door.admit(&mut header("t"), OWN), None);
        assert_eq!(door.admit(&mut parts("/v1/messages", &[]), OWN), None);
        let mut shown = parts("/token/t2/v1/messages?beta=true", &[]);
        assert_eq!(door.admit(&mut shown, OWN), named("bob"));
        assert_eq!(shown.uri, "/v1/messages?beta=true");
        assert_eq!(door.admit(&mut parts("/token/t9/v1/messages", &[]), OWN), None);
    }

    #[test]
    fn bearer_token_opens_own_paths_alone_and_is_removed() {
        let door = door("alice=t1");
        let bearer = ("authorization", "bearer t1");
        let mut own = parts("/foldline/metrics", &[bearer]);
        assert_eq!(door.admit(&mut own, OWN), named("alice"));
        assert!(own.headers.is_empty());
        assert_eq!(door.admit(&mut parts("/v1/messages", &[bearer]), OWN), None);
        let mut both = parts("/v1/messages", &[bearer, ("x-foldline-token", "t1")]);
        assert_eq!(door.admit(&mut both, OWN), named("alice"));
        assert!(both.headers.is_empty(), "no token reaches a provider");
        let mut key = parts("/v1/messages", &[("authorization", "Bearer sk-1"), ("x-foldline-token", "t1")]);
        assert!(door.admit(&mut key, OWN).is_some() && key.headers.contains_key("authorization"));
    }

    #[test]
    fn tokens_are_read_from_lists() {
        let tokens = AccessToken::parse_list("# of 2026\na.b@c-d_1 = x:y=z\n\n c:t1 , t2\nYWJj==\n").unwrap();
        let read: Vec<_> = tokens.iter().map(|it| (it.name(), it.secret.as_str())).collect();
        assert_eq!(read, [(Some("a.b@c-d_1"), "x:y=z"), (Some("c"), "t1"), (None, "t2"), (None, "YWJj==")]);
        assert!(AccessToken::parse_list("a=t1\na=t2").is_ok(), "two tokens of one tenant");
        for bad in ["a=t1\nb=t1", "two words", "a = \u{e9}", "a=t1\nt1"] {
            let error = AccessToken::parse_list(bad).unwrap_err().to_string();
            assert!(!error.contains("t1") && !error.contains('\u{e9}'), "{error}");
        }
        assert!(AccessToken::new(Some("a/b"), "t").is_err() && AccessToken::new(None, "").is_err());
    }

    #[test]
    fn foreign_host_header_is_rejected() {
        let asked = |host: &str| {
            let request = Request::builder().header(HOST, host).body(()).unwrap();
            TokenAuth::new(&[], ([127, 0, 0, 1], 80).into()).allows_host(request.headers())
        };
        for host in ["localhost", "localhost:8787", "127.0.0.1:1", "[::1]:8787", "[::1]"] {
            assert!(asked(host), "{host}");
        }
        for host in ["evil.example", "evil.example:8787", "localhost.evil.example", "10.0.0.1"] {
            assert!(!asked(host), "{host}");
        }
    }
}
