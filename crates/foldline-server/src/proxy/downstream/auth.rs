//! Authentication of clients by access tokens, and of gateways by certificates.
//!
//! Without tokens only this machine can connect, because the proxy listens on loopback only. With tokens every request
//! must carry one, unless it arrives on a connection with the certificate of a trusted gateway: in the header `x-foldline-token`, or as `/token/TOKEN` before the path, for clients that can set a
//! base URL but no header; for the proxy's own paths also as `Authorization: Bearer` or in the dashboard's cookie. The token is removed from the
//! request first, so that it is neither logged nor forwarded.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use hyper::Uri;
use hyper::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;

use crate::proxy::downstream::headers::{COOKIE_NAME, TENANT, TOKEN};
use crate::proxy::downstream::tls::GatewayCertificate;

/// A token that authenticates clients. Its name is that of a tenant, and remains when the token is replaced.
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

/// Error: a token or its name is not valid. The message does not contain the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadToken(String);

/// Maximum length of a token's name, in characters.
const MAX_NAME_CHARS: usize = 64;

impl AccessToken {
    /// Creates a token, optionally with the name of a tenant.
    ///
    /// # Errors
    ///
    /// The name contains characters other than letters, digits and `-_.@`, or the token contains characters other than
    /// visible ASCII.
    pub fn new(name: Option<&str>, secret: &str) -> Result<Self, BadToken> {
        if let Some(name) = name.filter(|name| !is_name(name)) {
            let name: String = name.chars().take(MAX_NAME_CHARS).collect();
            return Err(BadToken(format!(
                "\"{name}\" is not a valid token name: use 1 to {MAX_NAME_CHARS} letters, digits or - _ . @"
            )));
        }
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        if secret.is_empty() || !secret.bytes().all(is_allowed) {
            let owner = name.map_or(String::new(), |name| format!(" of {name}"));
            return Err(BadToken(format!(
                "the token{owner} is empty or contains spaces, commas or non-ASCII characters"
            )));
        }
        Ok(Self { name: name.map(str::to_owned), secret: secret.to_owned() })
    }

    /// Parses tokens, separated by line breaks or commas: `NAME = TOKEN`, `NAME:TOKEN`, or `TOKEN` alone. Empty lines
    /// and lines that start with `#` are skipped. A name may have several tokens, so that one can be replaced while the
    /// other is still in use.
    ///
    /// # Errors
    ///
    /// A token or a name is not valid, or two names have the same token.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, BadToken> {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let entries = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|entry| !entry.is_empty());
        let tokens = entries.map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        Self::check_distinct(&tokens)?;
        Ok(tokens)
    }

    /// Checks that no token belongs to two tenants.
    pub(crate) fn check_distinct(tokens: &[Self]) -> Result<(), BadToken> {
        for (at, token) in tokens.iter().enumerate() {
            if let Some(other) =
                tokens[..at].iter().find(|other| other.secret == token.secret && other.name != token.name)
            {
                let name = |entry: &Self| entry.name.clone().unwrap_or_else(|| "no name".to_owned());
                return Err(BadToken(format!("{} and {} have the same token", name(other), name(token))));
            }
        }
        Ok(())
    }

    /// Returns the name of the token, if any.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the token itself.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    fn parse(entry: &str) -> Result<Self, BadToken> {
        let named = entry.split_once(['=', ':']).map(|(name, secret)| (name.trim(), secret.trim()));
        // A token that ends in base64 padding has no name before it.
        let named = named.filter(|(name, secret)| is_name(name) && secret.bytes().any(|byte| byte != b'='));
        match named {
            Some((name, secret)) => Self::new(Some(name), secret),
            None => Self::new(None, entry),
        }
    }
}

/// Returns true if a text can name a token or a tenant.
pub(crate) fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(is_allowed)
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

/// The accepted tokens, stored as hashes: comparing hashes takes the same time for every guess.
#[derive(Debug)]
pub(crate) struct TokenAuth {
    /// Replaced while requests are authenticated.
    tokens: RwLock<Arc<[KnownToken]>>,
    /// Names of tokens that belong to trusted gateways.
    gateways: Vec<String>,
    /// True if requests need neither a token nor a certificate.
    is_open: bool,
}

#[derive(Clone, Debug)]
struct KnownToken {
    hash: blake3::Hash,
    name: Option<Arc<str>>,
    is_gateway: bool,
}

/// The owner of the path of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathOwner {
    /// The proxy serves it.
    Proxy,
    /// It is forwarded.
    Provider,
}

/// The result of authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Neither tokens nor authorities of gateways are set.
    Open,
    /// A token, with its name if it has one.
    Token(Option<Arc<str>>),
    /// The token or the certificate of a trusted gateway, with the tenant that it named.
    Gateway(Option<Arc<str>>),
}

/// Prefix of a path that carries a token.
const TOKEN_PATH_PREFIX: &str = "/token/";

impl TokenAuth {
    /// Creates the list of accepted tokens. Those with names in `gateways` belong to trusted gateways.
    pub(crate) fn new(tokens: &[AccessToken], gateways: &[String], is_open: bool) -> Self {
        Self { tokens: RwLock::new(known_tokens(tokens, gateways)), gateways: gateways.to_vec(), is_open }
    }

    /// Replaces the accepted tokens, for requests from now on.
    pub(crate) fn replace_tokens(&self, tokens: &[AccessToken]) {
        let known = known_tokens(tokens, &self.gateways);
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    fn tokens(&self) -> Arc<[KnownToken]> {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Authenticates a request; returns none if it is rejected. Tokens are removed from the request wherever they are. On
    /// own paths a token may also be in `Authorization: Bearer`, which providers use for their own keys. A token counts more
    /// than the certificate of the connection.
    pub(crate) fn admit(&self, parts: &mut Parts, owner: PathOwner) -> Option<Admission> {
        let in_path = strip_path_token(&mut parts.uri);
        let tenant = take_tenant(&mut parts.headers);
        let in_header = parts.headers.remove(TOKEN).map(|value| blake3::hash(value.as_bytes()));
        let tokens = self.tokens();
        let bearer = bearer(&parts.headers).map(blake3::hash).and_then(|hash| find_token(&tokens, hash));
        if bearer.is_some() {
            parts.headers.remove(AUTHORIZATION);
        }
        if self.is_open {
            return Some(Admission::Open);
        }
        let is_own = owner == PathOwner::Proxy;
        let bearer = bearer.filter(|_| is_own);
        let in_cookie = cookie_token(&parts.headers).filter(|_| is_own).map(|token| blake3::hash(&token));
        if !is_own {
            remove_cookie(&mut parts.headers);
        }
        let token = [in_header, in_path, in_cookie].into_iter().flatten().find_map(|hash| find_token(&tokens, hash));
        match token.or(bearer) {
            Some(token) if !token.is_gateway => Some(Admission::Token(token.name.clone())),
            Some(_) => Some(Admission::Gateway(tenant)),
            None => parts.extensions.get::<GatewayCertificate>().map(|_| Admission::Gateway(tenant)),
        }
    }

    /// Returns true if a token is valid.
    pub(crate) fn accepts(&self, token: &[u8]) -> bool {
        find_token(&self.tokens(), blake3::hash(token)).is_some()
    }
}

fn known_tokens(tokens: &[AccessToken], gateways: &[String]) -> Arc<[KnownToken]> {
    let known = |token: &AccessToken| KnownToken {
        hash: blake3::hash(token.secret.as_bytes()),
        name: token.name.as_deref().map(Arc::from),
        is_gateway: token.name.as_ref().is_some_and(|name| gateways.contains(name)),
    };
    tokens.iter().map(known).collect()
}

/// Returns the token with this hash. All tokens are compared, so that the time does not depend on which one matches.
fn find_token(tokens: &[KnownToken], hash: blake3::Hash) -> Option<&KnownToken> {
    tokens.iter().fold(None, |found, token| if token.hash == hash { Some(token) } else { found })
}

/// Removes the header with the name of a tenant; returns the name if there is one, and it is valid.
fn take_tenant(headers: &mut HeaderMap) -> Option<Arc<str>> {
    let mut names = headers.get_all(TENANT).iter();
    let name = names.next().filter(|_| names.next().is_none()).and_then(|value| value.to_str().ok());
    let name = name.filter(|name| is_name(name)).map(Arc::from);
    headers.remove(TENANT);
    name
}

/// Returns the credential of `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, credential) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| credential.trim_ascii())
}

fn strip_path_token(uri: &mut Uri) -> Option<blake3::Hash> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(TOKEN_PATH_PREFIX)?;
    let (token, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let hash = blake3::hash(token.as_bytes());
    let path = if path.is_empty() { "/" } else { path }.parse().ok();
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = path;
    *uri = Uri::from_parts(parts).unwrap_or_default();
    Some(hash)
}

/// Returns the token in the cookie of a request.
fn cookie_token(headers: &HeaderMap) -> Option<Vec<u8>> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find_map(|(name, value)| if name == COOKIE_NAME { decode_hex(value) } else { None })
}

/// Removes the cookie from a request that is forwarded; other cookies stay.
fn remove_cookie(headers: &mut HeaderMap) {
    let is_own = |pair: &str| pair.trim().split_once('=').is_some_and(|(name, _)| name == COOKIE_NAME);
    let values: Vec<HeaderValue> = headers.get_all(COOKIE).iter().cloned().collect();
    if !values.iter().any(|value| value.to_str().is_ok_and(|text| text.split(';').any(is_own))) {
        return;
    }
    headers.remove(COOKIE);
    for value in values {
        let kept =
            value.to_str().map(|text| text.split(';').filter(|pair| !is_own(pair)).collect::<Vec<_>>().join(";"));
        let kept = kept.map_or(Ok(value), |kept| kept.trim().parse());
        if let Some(kept) = kept.ok().filter(|value: &HeaderValue| !value.is_empty()) {
            headers.append(COOKIE, kept);
        }
    }
}

/// Returns the header that sets the cookie; an empty token clears it.
pub(crate) fn set_cookie(token: &str, is_tls: bool) -> Option<HeaderValue> {
    let value: String = token.bytes().map(|byte| format!("{byte:02x}")).collect();
    let (age, secure) = (if token.is_empty() { "; Max-Age=0" } else { "" }, if is_tls { "; Secure" } else { "" });
    format!("{COOKIE_NAME}={value}; Path=/foldline; HttpOnly; SameSite=Strict{age}{secure}").parse().ok()
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes().chunks(2);
    bytes.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let request =
            headers.iter().fold(Request::builder().uri(uri), |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    fn auth(tokens: &str) -> TokenAuth {
        TokenAuth::new(&AccessToken::parse_list(tokens).unwrap(), &["gate".to_owned()], false)
    }

    fn named(name: &str) -> Option<Admission> {
        Some(Admission::Token(Some(name.into())))
    }

    #[test]
    fn token_is_accepted_in_header_or_path() {
        let auth = auth("alice=t1\nbob=t2\nt3");
        let header = |token| parts("/v1/messages", &[("x-foldline-token", token)]);
        assert_eq!(auth.admit(&mut header("t1"), PathOwner::Provider), named("alice"));
        assert_eq!(auth.admit(&mut header("t2"), PathOwner::Provider), named("bob"));
        assert_eq!(auth.admit(&mut header("t3"), PathOwner::Provider), Some(Admission::Token(None)));
        assert_eq!(auth.admit(&mut header("t"), PathOwner::Provider), None);
        assert_eq!(auth.admit(&mut parts("/v1/messages", &[]), PathOwner::Provider), None);
        let mut request = parts("/token/t2/v1/messages?beta=true", &[]);
        assert_eq!(auth.admit(&mut request, PathOwner::Provider), named("bob"));
        assert_eq!(request.uri, "/v1/messages?beta=true");
        assert_eq!(auth.admit(&mut parts("/token/t9/v1/messages", &[]), PathOwner::Provider), None);
    }

    #[test]
    fn bearer_token_is_accepted_only_on_own_paths_and_removed() {
        let auth = auth("alice=t1");
        let bearer = ("authorization", "bearer t1");
        let mut request = parts("/foldline/metrics", &[bearer]);
        assert_eq!(auth.admit(&mut request, PathOwner::Proxy), named("alice"));
        assert!(request.headers.is_empty());
        assert_eq!(auth.admit(&mut parts("/v1/messages", &[bearer]), PathOwner::Provider), None);
        let mut both = parts("/v1/messages", &[bearer, ("x-foldline-token", "t1")]);
        assert_eq!(auth.admit(&mut both, PathOwner::Provider), named("alice"));
        assert!(both.headers.is_empty(), "no token reaches a provider");
        let mut cookie = parts("/v1/messages", &[("cookie", "foldline_token=7431"), ("x-foldline-token", "t1")]);
        assert_eq!(auth.admit(&mut cookie, PathOwner::Provider), named("alice"));
        assert!(cookie.headers.is_empty(), "nor does one in a cookie, and it opens no provider's path");
        assert_eq!(
            auth.admit(&mut parts("/v1/messages", &[("cookie", "foldline_token=7431")]), PathOwner::Provider),
            None
        );
        let mut key = parts("/v1/messages", &[("authorization", "Bearer sk-1"), ("x-foldline-token", "t1")]);
        assert!(auth.admit(&mut key, PathOwner::Provider).is_some() && key.headers.contains_key("authorization"));
    }

    #[test]
    fn only_a_gateway_names_a_tenant() {
        let auth = auth("gate=g1\nalice=t1");
        let admit = |token, tenants: &[&'static str]| {
            let headers =
                tenants.iter().map(|tenant| ("x-foldline-tenant", *tenant)).chain([("x-foldline-token", token)]);
            let mut request = parts("/v1/messages", &headers.collect::<Vec<_>>());
            let admission = auth.admit(&mut request, PathOwner::Provider);
            assert!(request.headers.is_empty(), "no header of the gateway reaches a provider");
            admission
        };
        assert_eq!(admit("g1", &["team-7"]), Some(Admission::Gateway(Some("team-7".into()))));
        assert_eq!(admit("t1", &["team-7"]), named("alice"), "a client cannot name another tenant");
        assert_eq!(admit("t9", &["team-7"]), None);
        for none in [&[][..], &[""], &["a/b"], &["team-7", "team-8"]] {
            assert_eq!(admit("g1", none), Some(Admission::Gateway(None)), "{none:?}");
        }
    }

    #[test]
    fn certificate_of_a_gateway_replaces_its_token() {
        let admit = |tokens: &str, certificate: Option<GatewayCertificate>, headers: &[(&str, &str)]| {
            let mut request = parts("/v1/messages", headers);
            let _ = certificate.map(|certificate| request.extensions.insert(certificate));
            let admission = auth(tokens).admit(&mut request, PathOwner::Provider);
            assert!(request.headers.is_empty(), "no header of the gateway reaches a provider");
            admission
        };
        let (gateway, tenant) = (Some(GatewayCertificate::for_test()), ("x-foldline-tenant", "team-7"));
        for tokens in ["", "alice=t1"] {
            assert_eq!(admit(tokens, gateway, &[tenant]), Some(Admission::Gateway(Some("team-7".into()))));
            assert_eq!(admit(tokens, gateway, &[]), Some(Admission::Gateway(None)));
            assert_eq!(admit(tokens, None, &[tenant]), None, "without tokens a certificate is required");
        }
        assert_eq!(admit("alice=t1", gateway, &[tenant, ("x-foldline-token", "t1")]), named("alice"));
        assert_eq!(admit("alice=t1", None, &[tenant, ("x-foldline-token", "t1")]), named("alice"));
    }

    #[test]
    fn token_lists_are_parsed() {
        let tokens = AccessToken::parse_list("# of 2026\na.b@c-d_1 = x:y=z\n\n c:t1 , t2\nYWJj==\n").unwrap();
        let read: Vec<_> = tokens.iter().map(|token| (token.name(), token.secret.as_str())).collect();
        assert_eq!(read, [(Some("a.b@c-d_1"), "x:y=z"), (Some("c"), "t1"), (None, "t2"), (None, "YWJj==")]);
        assert!(AccessToken::parse_list("a=t1\na=t2").is_ok(), "two tokens of one tenant");
        for bad in ["a=t1\nb=t1", "two words", "a = \u{e9}", "a=t1\nt1"] {
            let error = AccessToken::parse_list(bad).unwrap_err().to_string();
            assert!(!error.contains("t1") && !error.contains('\u{e9}'), "{error}");
        }
        assert!(AccessToken::new(Some("a/b"), "t").is_err() && AccessToken::new(None, "").is_err());
    }

    fn cookies(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(COOKIE, value.parse().unwrap())])
    }

    #[test]
    fn token_survives_its_cookie() {
        let cookie = set_cookie("t;\"=1", true).unwrap();
        let cookie = cookie.to_str().unwrap();
        assert!(cookie.ends_with("; Path=/foldline; HttpOnly; SameSite=Strict; Secure"), "{cookie}");
        let sent = format!("other=1; {}", cookie.split(';').next().unwrap());
        assert_eq!(cookie_token(&cookies(&sent)).unwrap(), b"t;\"=1");
        assert_eq!(cookie_token(&cookies("foldline_token=zz")), None);
        assert!(set_cookie("", false).unwrap().to_str().unwrap().contains("Max-Age=0"));
    }

    #[test]
    fn cookie_is_removed_from_forwarded_requests() {
        let kept = |list: &[&str]| {
            let mut map = HeaderMap::from_iter(list.iter().map(|value| (COOKIE, value.parse().unwrap())));
            remove_cookie(&mut map);
            map.get_all("cookie").iter().map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["a=1; foldline_token=7431; b=2"]), ["a=1; b=2"]);
        assert_eq!(kept(&["foldline_token=7431", "c=3"]), ["c=3"]);
        assert_eq!(kept(&["a=1; foldline_token2=x"]), ["a=1; foldline_token2=x"]);
        assert!(kept(&[" foldline_token=7431"]).is_empty());
    }
}
