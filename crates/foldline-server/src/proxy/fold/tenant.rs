//! Tenants: the part of the archive that a request reads and writes.
//!
//! The identity of a tenant has to survive the rotation of credentials: if it changed in the middle of a session, the
//! session's ledger would be lost. So it is the name of a token or an API key, never an OAuth access token or a
//! signature. A request without such an identity gets no archive and is forwarded unmodified.
//!
//! The namespace of an API key depends on the identity of the archive, which may have to be read from its database. Only a
//! request that needs the namespace waits for it, and not on a thread that serves others.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Once};
use std::time::Instant;

use foldline_archive::{Archive, Namespace, TenantArchive};
use hyper::HeaderMap;
use hyper::http::request::Parts;
use tokio::sync::Mutex;

use crate::proxy::admin::metrics::ProxyMetrics;
use crate::proxy::downstream::auth::{AccessToken, Admission, is_name};
use crate::proxy::downstream::tenancy::Tenancy;
use crate::proxy::lru_map::map_key;
use crate::proxy::settings::{ProxySettings, TenantSettings};
use crate::proxy::upstream::credentials::CREDENTIAL_HEADERS;

/// Error: a request has no lasting identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoTenant;

/// The name of tokens without a name.
const DEFAULT_TOKEN_NAME: &str = "default";

/// The archive's names for API keys: this prefix and this many hexadecimal digits.
const KEY_NAME_PREFIX: &str = "key-";
const KEY_NAME_DIGITS: usize = 32;

/// A tenant, as one request sees it.
#[derive(Clone)]
pub(crate) struct Tenant {
    pub(crate) key: TenantKey,
    /// Its part of the archive; none if there is no archive, or its namespace is not known.
    pub(crate) archive: Option<TenantArchive>,
    /// Its own settings.
    pub(crate) settings: Arc<TenantSettings>,
    /// The API keys whose namespace is not known yet.
    unresolved_key: Option<Vec<u8>>,
}

/// The key of a tenant in in-memory tables. It is never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TenantKey(pub(crate) u128);

/// Prefixes of credentials that expire within hours: OAuth access tokens of Anthropic, Google and GitHub, session
/// tokens of Copilot, short-term keys of Bedrock.
const ROTATING_PREFIXES: [&[u8]; 6] = [b"sk-ant-oat", b"ya29.", b"ghu_", b"ghs_", b"tid=", b"bedrock-api-key-"];

/// Minimum length of an API key. Shorter values are placeholders such as `EMPTY` or `ollama`, which many users share.
const MIN_API_KEY_CHARS: usize = 20;

/// Returns the tenancy for these settings: the chosen one if it is safe, otherwise the default for the tokens.
fn resolve_tenancy(settings: &ProxySettings) -> io::Result<Tenancy> {
    let (tokens, is_open) = (&settings.tokens, settings.is_open());
    let all_named = tokens.iter().all(|token| token.name().is_some());
    let tenancy = settings.tenancy.unwrap_or(match (is_open, all_named) {
        (true, _) => Tenancy::Single,
        (false, true) => Tenancy::Token,
        (false, false) => Tenancy::Credential,
    });
    let refused = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    match tenancy {
        Tenancy::Single if !is_open => {
            return refused(
                "tenancy single would share originals between all token holders; choose token or credential",
            );
        }
        Tenancy::Token if is_open => return refused("tenancy token needs tokens; set them with --token-file"),
        Tenancy::Token if !all_named && tokens.iter().any(|token| token.name() == Some(DEFAULT_TOKEN_NAME)) => {
            return refused(
                "the token named default would share originals with tokens without a name; rename it or name the others",
            );
        }
        Tenancy::Token | Tenancy::Credential if settings.namespace != Namespace::local() => {
            return refused("a namespace can be set only under tenancy single; otherwise each tenant has its own");
        }
        _ => {}
    }
    AccessToken::check_distinct(tokens).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    if let Some(unknown) = settings.gateways.iter().find(|name| tokens.iter().all(|token| token.name() != Some(name))) {
        return refused(&format!(
            "the gateway {unknown} has no token; add a line `{unknown} = TOKEN` to the token file"
        ));
    }
    if tenancy == Tenancy::Credential && (is_open || !all_named) {
        tracing::warn!(
            "requests without an API key, or with a rotating credential (OAuth, SigV4), belong to no tenant and are \
forwarded unmodified; name the tokens (NAME = TOKEN), or set tenancy to token if all users may share originals"
        );
    }
    Ok(tenancy)
}

/// The kind of a tenant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantKind {
    /// The name of a token.
    Token,
    /// A name that a gateway sends.
    Gateway,
    /// The archive's name for an API key.
    Key,
}

/// Returns the kind of a tenant's name; none if no request can belong to such a tenant. `settings.tenants` is not used.
pub fn tenant_kind(settings: &ProxySettings, name: &str) -> Option<TenantKind> {
    let key = name.strip_prefix(KEY_NAME_PREFIX).unwrap_or_default();
    let is_key = key.len() == KEY_NAME_DIGITS && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    let by_key = match settings.tenancy {
        Some(tenancy) => tenancy == Tenancy::Credential,
        None => settings.tokens.iter().any(|token| token.name().is_none()),
    };
    if tenant_names(settings).any(|known| known == name) {
        Some(TenantKind::Token)
    } else if is_key && by_key {
        Some(TenantKind::Key)
    } else {
        (settings.has_gateways() && is_name(name)).then_some(TenantKind::Gateway)
    }
}

/// Returns the names of all tenants that tokens name.
pub fn tenant_names(settings: &ProxySettings) -> impl Iterator<Item = &str> {
    let has_default = settings.tenancy == Some(Tenancy::Token) && settings.tokens.iter().any(|it| it.name().is_none());
    let names = settings.tokens.iter().filter_map(AccessToken::name);
    let is_gateway = |name: &&str| settings.gateways.iter().any(|gateway| gateway == name);
    names.filter(move |name| !is_gateway(name)).chain(has_default.then_some(DEFAULT_TOKEN_NAME))
}

/// The settings of single tenants.
#[derive(Default)]
struct TenantTable {
    tokens: HashMap<String, Arc<TenantSettings>>,
    gateways: HashMap<String, Arc<TenantSettings>>,
    keys: HashMap<String, Arc<TenantSettings>>,
    /// Settings of all others.
    default: Arc<TenantSettings>,
}

impl TenantTable {
    fn new(settings: &ProxySettings) -> io::Result<Self> {
        let mut table = Self::default();
        for (name, tenant) in &settings.tenants {
            let rows = match tenant_kind(settings, name) {
                Some(TenantKind::Token) => &mut table.tokens,
                Some(TenantKind::Gateway) => &mut table.gateways,
                Some(TenantKind::Key) => &mut table.keys,
                None => {
                    let reason = format!("no request can belong to the tenant {name}: no token has this name");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
                }
            };
            rows.insert(name.clone(), Arc::new(tenant.clone()));
        }
        Ok(table)
    }

    /// Returns the settings of a tenant. `key_name` computes the archive's name for an API key.
    fn get(&self, identity: &Identity<'_>, key_name: Option<&str>) -> &Arc<TenantSettings> {
        let found = match identity {
            Identity::Operator => None,
            Identity::Token(name) => self.tokens.get(*name),
            Identity::Gateway(name) => self.gateways.get(*name),
            Identity::Key(_) => key_name.and_then(|name| self.keys.get(name)),
        };
        found.unwrap_or(&self.default)
    }
}

/// Finds the tenant of a request.
pub(crate) struct TenantDirectory {
    tenancy: Tenancy,
    /// Namespace under tenancy single.
    namespace: Namespace,
    archive: Option<Archive>,
    table: TenantTable,
    /// Time of the last attempt to read the identity of the archive. Only one request reads at a time.
    read_at: Arc<Mutex<Option<Instant>>>,
    metrics: Arc<ProxyMetrics>,
    /// Ensures that a request without a tenant is logged once.
    no_tenant_warning: Once,
}

impl TenantDirectory {
    /// Creates a directory.
    ///
    /// # Errors
    ///
    /// The tenancy of the settings would share originals between users, or does not match the tokens; or there are settings
    /// for a tenant that cannot exist.
    pub(crate) fn new(
        settings: &ProxySettings,
        archive: Option<Archive>,
        metrics: Arc<ProxyMetrics>,
    ) -> io::Result<Self> {
        let (tenancy, namespace) = (resolve_tenancy(settings)?, settings.namespace.clone());
        let table = TenantTable::new(settings)?;
        let (read_at, no_tenant_warning) = (Arc::default(), Once::new());
        Ok(Self { tenancy, namespace, archive, table, read_at, metrics, no_tenant_warning })
    }

    /// Returns the rule by which requests share originals.
    pub(crate) fn tenancy(&self) -> Tenancy {
        self.tenancy
    }

    /// Returns the archive.
    pub(crate) fn archive(&self) -> Option<&Archive> {
        self.archive.as_ref()
    }

    /// Returns true if originals are stored.
    pub(crate) fn has_archive(&self) -> bool {
        self.archive.is_some()
    }

    /// Returns the tenant of a request, with its settings and archive as far as they are known without waiting.
    pub(crate) fn find_tenant(&self, parts: &Parts) -> Result<Tenant, NoTenant> {
        identity(self.tenancy, parts).map(|identity| self.tenant(&identity))
    }

    /// Returns the tenant with its settings; waits if those depend on the namespace of an API key.
    pub(crate) async fn with_settings(&self, tenant: Tenant) -> Tenant {
        if self.table.keys.is_empty() { tenant } else { self.with_archive(tenant).await }
    }

    /// Returns the tenant with its settings and archive; waits for a database that was not reachable so far.
    pub(crate) async fn with_archive(&self, tenant: Tenant) -> Tenant {
        if tenant.unresolved_key.is_none() { tenant } else { self.resolve_key(tenant).await }
    }

    async fn resolve_key(&self, mut tenant: Tenant) -> Tenant {
        let (Some(key), Some(archive)) = (tenant.unresolved_key.take(), &self.archive) else { return tenant };
        self.read_identity(archive, &key).await;
        match archive.known_namespace_for_credential(&key) {
            Some(_) => self.tenant(&Identity::Key(key)),
            None => {
                self.metrics.count_internal_error("archive");
                tenant
            }
        }
    }

    /// Returns the tenant of a request that needs one, with its archive, and counts requests without.
    pub(crate) async fn require_tenant(&self, parts: &Parts) -> Result<Tenant, NoTenant> {
        let tenant = self.find_tenant(parts).inspect_err(|_| self.count_no_tenant())?;
        Ok(self.with_archive(tenant).await)
    }

    /// Returns the tenant of all requests, under tenancy single.
    pub(crate) fn only_tenant(&self) -> Option<Tenant> {
        (self.tenancy == Tenancy::Single).then(|| self.tenant(&Identity::Operator))
    }

    fn tenant(&self, identity: &Identity<'_>) -> Tenant {
        let namespace = self.archive.as_ref().and_then(|archive| self.known_namespace(archive, identity));
        let archive = self.archive.as_ref().zip(namespace.as_ref()).map(|(archive, name)| archive.tenant(name));
        let settings = self.table.get(identity, namespace.as_ref().map(Namespace::as_str)).clone();
        let unresolved_key = match identity {
            Identity::Key(key) if archive.is_none() && self.has_archive() => Some(key.clone()),
            _ => None,
        };
        Tenant { key: identity.key(), archive, settings, unresolved_key }
    }

    /// Returns the namespace of a tenant, unless the archive's identity has to be read for it.
    fn known_namespace(&self, archive: &Archive, identity: &Identity<'_>) -> Option<Namespace> {
        let namespace = match identity {
            Identity::Operator => Ok(self.namespace.clone()),
            Identity::Token(name) => Namespace::new(format!("token-{name}")),
            Identity::Gateway(name) => Namespace::new(format!("tenant-{name}")),
            Identity::Key(key) => return archive.known_namespace_for_credential(key),
        };
        let namespace = namespace.inspect_err(|error| {
            self.metrics.count_internal_error("archive");
            tracing::warn!(%error, "cannot derive the archive namespace; this request is not archived");
        });
        namespace.ok()
    }

    /// Reads the identity of the archive on a thread that may wait for its database. Requests that come meanwhile share the
    /// result.
    async fn read_identity(&self, archive: &Archive, key: &[u8]) {
        let came_at = Instant::now();
        // The thread has the guard: a client that disconnects must not let another one read.
        let mut read_at = self.read_at.clone().lock_owned().await;
        if read_at.is_some_and(|read_at| read_at > came_at) {
            return;
        }
        let (archive, key) = (archive.clone(), key.to_vec());
        let reading = tokio::task::spawn_blocking(move || {
            let read = archive.namespace_for_credential(&key);
            *read_at = Some(Instant::now());
            read
        });
        if let Ok(Err(error)) = reading.await {
            tracing::warn!(%error, "cannot derive the archive namespace; requests with API keys are not archived");
        }
    }

    /// Counts a request that is forwarded unmodified because it has no tenant.
    pub(crate) fn count_no_tenant(&self) {
        self.metrics.count_internal_error("no_tenant");
        self.no_tenant_warning.call_once(|| {
            tracing::warn!(
                "a request without an API key, or with a rotating credential, belongs to no tenant; it and similar \
                 requests are forwarded unmodified (reported once)"
            );
        });
    }
}

/// The lasting identity of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Identity<'r> {
    /// The only tenant.
    Operator,
    /// The name of a token.
    Token(&'r str),
    /// The tenant that a gateway named.
    Gateway(&'r str),
    /// The API keys of a request.
    Key(Vec<u8>),
}

impl Identity<'_> {
    fn key(&self) -> TenantKey {
        TenantKey(match self {
            Identity::Operator => map_key(b"operator"),
            Identity::Token(name) => map_key(&[b"token\0", name.as_bytes()].concat()),
            Identity::Gateway(name) => map_key(&[b"gateway\0", name.as_bytes()].concat()),
            Identity::Key(key) => map_key(&[b"key\0", &key[..]].concat()),
        })
    }
}

fn identity(tenancy: Tenancy, parts: &Parts) -> Result<Identity<'_>, NoTenant> {
    let name = match parts.extensions.get::<Admission>() {
        Some(Admission::Gateway(tenant)) => return tenant.as_deref().map(Identity::Gateway).ok_or(NoTenant),
        Some(Admission::Token(name)) => name.as_deref(),
        Some(Admission::Open) | None => None,
    };
    match (tenancy, name) {
        (Tenancy::Single, _) => Ok(Identity::Operator),
        (_, Some(name)) => Ok(Identity::Token(name)),
        (Tenancy::Token, None) => Ok(Identity::Token(DEFAULT_TOKEN_NAME)),
        (Tenancy::Credential, None) => api_keys(&parts.headers).map(Identity::Key).ok_or(NoTenant),
    }
}

/// Returns all API keys of a request as one value; none if there are none, or if one of its credentials rotates: then
/// the others may be placeholders that many users share.
fn api_keys(headers: &HeaderMap) -> Option<Vec<u8>> {
    let mut keys = Vec::new();
    for value in CREDENTIAL_HEADERS.iter().flat_map(|name| headers.get_all(name)) {
        let key = match value.as_bytes().trim_ascii() {
            bytes if bytes.contains(&b' ') => {
                let (scheme, key) = bytes.split_at(bytes.iter().position(|byte| *byte == b' ')?);
                let lasting = scheme.eq_ignore_ascii_case(b"bearer") || scheme.eq_ignore_ascii_case(b"basic");
                lasting.then(|| key.trim_ascii())?
            }
            bytes => bytes,
        };
        if is_rotating(key) {
            return None;
        }
        if key.len() >= MIN_API_KEY_CHARS {
            keys.extend_from_slice(&(key.len() as u64).to_le_bytes());
            keys.extend_from_slice(key);
        }
    }
    (!keys.is_empty()).then_some(keys)
}

/// Returns true for credentials that are replaced during a session. A JSON Web Token starts with the base64 of `{"`.
fn is_rotating(key: &[u8]) -> bool {
    let is_jwt = key.starts_with(b"eyJ") && key.iter().filter(|byte| **byte == b'.').count() >= 2;
    is_jwt || ROTATING_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderName;

    fn keys(list: &[(&'static str, &'static str)]) -> Option<Vec<u8>> {
        let headers = list.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        api_keys(&headers.collect())
    }

    #[test]
    fn names_of_tenants_have_a_kind() {
        let tokens =
            |list: &str| ProxySettings { tokens: AccessToken::parse_list(list).unwrap(), ..Default::default() };
        let key = format!("key-{}", "0a".repeat(16));
        let mut settings = tokens("alice = t-a, gate = t-g");
        let kind = |settings: &ProxySettings, name: &str| tenant_kind(settings, name);
        assert_eq!(kind(&settings, "alice"), Some(TenantKind::Token));
        assert_eq!((kind(&settings, "bob"), kind(&settings, "default"), kind(&settings, &key)), (None, None, None));
        settings.gateways = vec!["gate".into()];
        assert_eq!(kind(&settings, "alice"), Some(TenantKind::Token));
        assert_eq!(kind(&settings, "bob"), Some(TenantKind::Gateway));
        assert_eq!(kind(&settings, "gate"), Some(TenantKind::Gateway), "its own requests have no tenant");
        assert_eq!(kind(&settings, "not a name"), None);
        assert_eq!(kind(&tokens("t-1"), &key), Some(TenantKind::Key));
        assert_eq!((kind(&tokens("t-1"), "key-0a"), kind(&tokens("t-1"), "default")), (None, None));
        let shared = ProxySettings { tenancy: Some(Tenancy::Token), ..tokens("t-1") };
        assert_eq!((kind(&shared, "default"), kind(&shared, &key)), (Some(TenantKind::Token), None));
        assert_eq!(kind(&ProxySettings::default(), "alice"), None);
    }

    const KEY: &str = "sk-proj-0123456789abcdef";
    const BEARER: &str = "Bearer sk-proj-0123456789abcdef";

    #[test]
    fn api_key_is_the_same_tenant_in_every_header() {
        let mine = keys(&[("x-api-key", KEY)]);
        assert!(mine.is_some());
        assert_eq!(mine, keys(&[("authorization", BEARER)]));
        assert_eq!(mine, keys(&[("api-key", KEY), ("user-agent", "me")]));
        assert_ne!(mine, keys(&[("x-goog-api-key", "AIzaSy0123456789abcdefghijk")]));
        assert_ne!(mine, keys(&[("x-api-key", KEY), ("authorization", "Bearer gateway-key-of-another-user")]));
    }

    #[test]
    fn rotating_credentials_are_never_an_identity() {
        for rotating in [
            "Bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
            "Bearer sk-ant-oat01-0123456789",
            "bearer ya29.a0AfH6SMBx0123456789abcdef",
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/bedrock/aws4_request, Signature=00",
        ] {
            assert_eq!(keys(&[("authorization", rotating)]), None, "{rotating}");
            assert_eq!(keys(&[("authorization", rotating), ("x-api-key", KEY)]), None, "{rotating}");
        }
    }

    #[test]
    fn placeholder_keys_are_never_an_identity() {
        assert_eq!(keys(&[]), None);
        assert_eq!(keys(&[("authorization", "Bearer ollama"), ("x-api-key", "EMPTY")]), None);
        assert_eq!(keys(&[("authorization", "Bearer ollama"), ("x-api-key", KEY)]), keys(&[("x-api-key", KEY)]));
    }
}
