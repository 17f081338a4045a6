//! AWS credentials of the proxy: where they come from, and when they are read again.
//!
//! One request is signed with one value, so that its three fields belong together. Must not happen here: a secret is
//! shown, logged or stored.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use jiff::Timestamp;
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::proxy::upstream::aws::profile::ProfileKeys;

/// Time for which credentials without an expiry are used before they are read again.
const READ_INTERVAL: Duration = Duration::from_secs(60);
/// Time before their expiry at which credentials are read again.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);
/// Time for a program to print credentials.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// AWS credentials.
///
/// ```
/// use foldline_server::proxy::AwsCredentials;
///
/// let credentials = AwsCredentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None)?;
/// assert!(!format!("{credentials:?}").contains("wJalr"));
/// # Ok::<(), foldline_server::proxy::AwsError>(())
/// ```
#[derive(Clone)]
pub struct AwsCredentials {
    pub(crate) access_key_id: String,
    pub(crate) secret_access_key: String,
    pub(crate) session_token: Option<String>,
    expires_at: Option<Timestamp>,
}

impl fmt::Debug for AwsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsCredentials").finish_non_exhaustive()
    }
}

/// Error: there are no credentials to sign with, or no region to sign for. Its text has no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsError(pub(crate) String);

impl fmt::Display for AwsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AwsError {}

impl AwsCredentials {
    /// Creates credentials of an access key, with a session token if they are temporary.
    ///
    /// # Errors
    ///
    /// A value is empty, or cannot be part of a header.
    pub fn new(access_key_id: &str, secret_access_key: &str, session_token: Option<&str>) -> Result<Self, AwsError> {
        let is_usable = |text: &str| !text.is_empty() && HeaderValue::from_str(text).is_ok();
        let (id, secret) = (access_key_id.trim(), secret_access_key.trim());
        let session_token = session_token.map(str::trim).filter(|token| !token.is_empty());
        if ![id, secret].into_iter().chain(session_token).all(is_usable) {
            return Err(AwsError(
                "an access key, its secret or its token is empty or has invalid characters".to_owned(),
            ));
        }
        let session_token = session_token.map(str::to_owned);
        Ok(Self { access_key_id: id.to_owned(), secret_access_key: secret.to_owned(), session_token, expires_at: None })
    }

    fn is_expired_at(&self, time: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= time)
    }
}

/// The place of AWS credentials.
#[derive(Clone, Debug)]
pub struct AwsCredentialSource(SourceKind);

#[derive(Clone, Debug)]
enum SourceKind {
    Keys(AwsCredentials),
    Profile { name: String, credentials_file: PathBuf, config_file: PathBuf },
}

impl AwsCredentialSource {
    /// Uses these credentials, such as those of variables.
    pub fn from_keys(credentials: AwsCredentials) -> Self {
        Self(SourceKind::Keys(credentials))
    }

    /// Uses a profile of the AWS files `credentials` and `config`, of which each may be missing.
    pub fn from_profile(name: impl Into<String>, credentials_file: PathBuf, config_file: PathBuf) -> Self {
        Self(SourceKind::Profile { name: name.into(), credentials_file, config_file })
    }

    async fn read(&self) -> Result<AwsCredentials, AwsError> {
        match &self.0 {
            SourceKind::Keys(credentials) => Ok(credentials.clone()),
            SourceKind::Profile { name, credentials_file, config_file } => {
                let parse = |text: &str| ProfileKeys::parse(text, name);
                let shared = parse(&read_file(credentials_file).await?);
                let config = parse(&read_file(config_file).await?);
                profile_credentials(name, &shared, &config).await
            }
        }
    }
}

/// Reads a file; one that does not exist is empty.
async fn read_file(path: &Path) -> Result<String, AwsError> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
    match read.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(AwsError(format!("an AWS file cannot be read: {error}"))),
    }
}

/// Returns the credentials of a profile: the keys of the file `credentials`, then the output of a program, then the keys
/// of the file `config`.
async fn profile_credentials(
    name: &str,
    shared: &ProfileKeys,
    config: &ProfileKeys,
) -> Result<AwsCredentials, AwsError> {
    if let Some(keys) = static_keys(shared) {
        return keys;
    }
    let program = [shared, config].into_iter().find_map(|profile| profile.get("credential_process"));
    if let Some(program) = program {
        return run_program(program).await;
    }
    if let Some(keys) = static_keys(config) {
        return keys;
    }
    let needs_login = ["sso_session", "sso_start_url", "role_arn", "login_session", "web_identity_token_file"];
    let has_login = needs_login.iter().any(|key| config.get(key).or_else(|| shared.get(key)).is_some());
    Err(AwsError(match has_login {
        true => format!(
            "the AWS profile \"{name}\" signs in or assumes a role, which the AWS command line can do: set AWS_PROFILE to a \
             profile with `credential_process = aws configure export-credentials --profile {name} --format process`"
        ),
        false => format!(
            "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or keys or a credential_process for the \
             profile \"{name}\""
        ),
    }))
}

fn static_keys(profile: &ProfileKeys) -> Option<Result<AwsCredentials, AwsError>> {
    let (id, secret) = (profile.get("aws_access_key_id")?, profile.get("aws_secret_access_key")?);
    Some(AwsCredentials::new(id, secret, profile.get("aws_session_token")))
}

/// What a `credential_process` prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProgramOutput {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Runs the program of a `credential_process`. What it prints is not shown.
async fn run_program(line: &str) -> Result<AwsCredentials, AwsError> {
    let failed = |reason: String| AwsError(format!("the credential_process of the AWS profile {reason}"));
    let (shell, option) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let mut command = Command::new(shell);
    command.args([option, line]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PROGRAM_TIMEOUT, command.output()).await;
    let output = output.map_err(|_| failed(format!("did not end within {} s", PROGRAM_TIMEOUT.as_secs())))?;
    let output = output.map_err(|error| failed(format!("could not be started: {error}")))?;
    if !output.status.success() {
        return Err(failed(format!("failed ({}); run it in a terminal to see why", output.status)));
    }
    let printed: ProgramOutput = serde_json::from_slice(&output.stdout)
        .map_err(|_| failed("printed something else than credentials in JSON".to_owned()))?;
    let session_token = printed.session_token.as_deref();
    let credentials = AwsCredentials::new(&printed.access_key_id, &printed.secret_access_key, session_token)?;
    let expires_at = printed.expiration.map(|text| text.parse()).transpose();
    let expires_at = expires_at.map_err(|_| failed("printed an expiration that is not a time".to_owned()))?;
    Ok(AwsCredentials { expires_at, ..credentials })
}

/// Credentials in memory, read again when they are old.
#[derive(Debug)]
pub(crate) struct CredentialCache {
    source: AwsCredentialSource,
    current: Mutex<Option<CachedCredentials>>,
}

#[derive(Clone, Debug)]
struct CachedCredentials {
    credentials: Arc<AwsCredentials>,
    fresh_until: Timestamp,
}

impl CredentialCache {
    pub(crate) fn new(source: AwsCredentialSource) -> Self {
        Self { source, current: Mutex::default() }
    }

    /// Returns credentials that are valid at this time. If they cannot be read again, the earlier ones are used until they
    /// expire.
    pub(crate) async fn get(&self, now: Timestamp) -> Result<Arc<AwsCredentials>, AwsError> {
        let mut current = self.current.lock().await;
        if let Some(cached) = current.as_ref().filter(|cached| now < cached.fresh_until) {
            return Ok(cached.credentials.clone());
        }
        let read = self.source.read().await.and_then(|read| match read.is_expired_at(now) {
            true => Err(AwsError("the AWS credentials have expired; sign in again".to_owned())),
            false => Ok(Arc::new(read)),
        });
        let earlier = current.take().map(|cached| cached.credentials).filter(|earlier| !earlier.is_expired_at(now));
        let credentials = match (read, earlier) {
            (Ok(read), _) => read,
            (Err(error), Some(earlier)) => {
                tracing::warn!(%error, "AWS credentials could not be read again; using the earlier ones");
                earlier
            }
            (Err(error), None) => return Err(error),
        };
        let fresh_until = fresh_until(&credentials, now);
        *current = Some(CachedCredentials { credentials: credentials.clone(), fresh_until });
        Ok(credentials)
    }
}

/// Returns the time at which credentials are read again.
fn fresh_until(credentials: &AwsCredentials, now: Timestamp) -> Timestamp {
    let time = credentials.expires_at.map_or(now + READ_INTERVAL, |end| end - EXPIRY_MARGIN);
    // Those that expire soon are read for each request.
    time.max(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    struct AwsFiles {
        folder: tempfile::TempDir,
    }

    impl AwsFiles {
        fn new(credentials: &str, config: &str) -> Self {
            let files = Self { folder: tempfile::tempdir().unwrap() };
            files.write("credentials", credentials);
            files.write("config", config);
            files
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.folder.path().join(name), text).unwrap();
        }

        fn cache(&self, profile: &str) -> CredentialCache {
            let [credentials, config] = ["credentials", "config"].map(|name| self.folder.path().join(name));
            CredentialCache::new(AwsCredentialSource::from_profile(profile, credentials, config))
        }
    }

    fn keys(id: &str) -> String {
        format!("aws_access_key_id = {id}\naws_secret_access_key = {SECRET}\n")
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    async fn key_id(cache: &CredentialCache, seconds: i64) -> Result<String, String> {
        cache.get(at(seconds)).await.map(|it| it.access_key_id.clone()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn keys_of_a_profile_are_read() {
        let credentials =
            format!("[default]\n{}[dev]\n{}aws_session_token = T\n", keys("AKIDDEFAULT"), keys("AKIDDEV"));
        let files = AwsFiles::new(&credentials, &format!("[profile old]\n{}", keys("AKIDOLD")));
        for (profile, id) in [("default", "AKIDDEFAULT"), ("dev", "AKIDDEV"), ("old", "AKIDOLD")] {
            assert_eq!(key_id(&files.cache(profile), 0).await.unwrap(), id);
        }
        assert_eq!(files.cache("dev").get(at(0)).await.unwrap().session_token.as_deref(), Some("T"));
    }

    #[tokio::test]
    async fn profile_without_keys_states_what_to_do() {
        let files = AwsFiles::new("", "[profile work]\nsso_session = s\n[profile broken]\naws_access_key_id = A\n");
        assert!(key_id(&files.cache("work"), 0).await.unwrap_err().contains("export-credentials --profile work"));
        for profile in ["broken", "none"] {
            let error = key_id(&files.cache(profile), 0).await.unwrap_err();
            assert!(error.contains("AWS_ACCESS_KEY_ID") && error.contains(profile), "{error}");
        }
    }

    #[tokio::test]
    async fn changed_file_is_read_after_a_minute() {
        let files = AwsFiles::new(&format!("[default]\n{}", keys("AKIDONE")), "");
        let cache = files.cache("default");
        assert_eq!(key_id(&cache, 0).await.unwrap(), "AKIDONE");
        files.write("credentials", &format!("[default]\n{}", keys("AKIDTWO")));
        assert_eq!(key_id(&cache, 59).await.unwrap(), "AKIDONE");
        assert_eq!(key_id(&cache, 60).await.unwrap(), "AKIDTWO");
        files.write("credentials", "");
        assert_eq!(key_id(&cache, 120).await.unwrap(), "AKIDTWO", "keys without an expiry outlive a broken file");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn program_prints_credentials_until_they_expire() {
        let output = |id: &str, end: i64| {
            let end = at(end);
            format!(
                r#"{{"Version":1,"AccessKeyId":"{id}","SecretAccessKey":"{SECRET}","SessionToken":"T","Expiration":"{end}"}}"#
            )
        };
        let files = AwsFiles::new("", "");
        let printed = files.folder.path().join("printed");
        files.write("config", &format!("[default]\ncredential_process = cat '{}'\n", printed.display()));
        let cache = files.cache("default");
        files.write("printed", &output("AKIDONE", 3_600));
        assert_eq!(key_id(&cache, 0).await.unwrap(), "AKIDONE");
        files.write("printed", &output("AKIDTWO", 7_200));
        assert_eq!(key_id(&cache, 3_500).await.unwrap(), "AKIDONE");
        assert_eq!(key_id(&cache, 3_545).await.unwrap(), "AKIDTWO");
        files.write("printed", SECRET);
        assert_eq!(key_id(&cache, 7_190).await.unwrap(), "AKIDTWO", "they are still valid");
        let error = key_id(&cache, 7_200).await.unwrap_err();
        assert!(error.contains("credential_process") && !error.contains(SECRET), "{error}");
        files.write("printed", &output("AKIDTHREE", 7_200));
        assert!(key_id(&cache, 7_201).await.unwrap_err().contains("expired"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let credentials = AwsCredentials::new("AKIDEXAMPLE", SECRET, Some("TOKEN")).unwrap();
        let shown = format!("{:?}", CredentialCache::new(AwsCredentialSource::from_keys(credentials)));
        assert!(!shown.contains("AKID") && !shown.contains(SECRET) && !shown.contains("TOKEN"), "{shown}");
        let error = AwsCredentials::new("AKID", "two\nlines", None).unwrap_err().to_string();
        assert!(!error.contains("lines\n") && !error.contains("two"), "{error}");
    }
}
