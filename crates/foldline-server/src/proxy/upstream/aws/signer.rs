//! Signs requests to one upstream with the credentials of the proxy.

use std::fmt;
use std::sync::Arc;

use hyper::{HeaderMap, Method, Uri};
use jiff::Timestamp;

use crate::proxy::upstream::aws::credentials::{AwsCredentialSource, AwsError, CredentialCache};
use crate::proxy::upstream::aws::signature::{SignedParts, SigningScope, sign};
use crate::proxy::upstream_urls::UpstreamUrl;

/// Signs requests to one upstream with AWS credentials of the proxy.
///
/// ```
/// use foldline_server::proxy::{AwsCredentialSource, AwsCredentials, AwsSigner};
///
/// let keys = AwsCredentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None)?;
/// let url = "https://bedrock-runtime.eu-west-1.amazonaws.com".parse()?;
/// let signer = AwsSigner::new(AwsCredentialSource::from_keys(keys), &url, None, None)?;
/// assert_eq!(signer.region(), "eu-west-1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AwsSigner {
    scope: Arc<SigningScope>,
    credentials: Arc<CredentialCache>,
}

impl fmt::Debug for AwsSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsSigner").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl PartialEq for AwsSigner {
    fn eq(&self, other: &Self) -> bool {
        self.scope == other.scope && Arc::ptr_eq(&self.credentials, &other.credentials)
    }
}

impl Eq for AwsSigner {}

impl AwsSigner {
    /// Creates a signer for the upstream at a URL. The region is the given one, or that in the host of the URL, or else the
    /// default one.
    ///
    /// # Errors
    ///
    /// The region is not known.
    pub fn new(
        source: AwsCredentialSource,
        url: &UpstreamUrl,
        region: Option<&str>,
        default_region: Option<&str>,
    ) -> Result<Self, AwsError> {
        let region = region.or_else(|| host_region(url.host())).or(default_region);
        let is_region =
            |name: &&str| !name.is_empty() && name.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-');
        let region = region.filter(is_region).ok_or_else(|| {
            AwsError(format!(
                "{url} does not name an AWS region; write aws:REGION, such as aws:us-east-1, or set AWS_REGION"
            ))
        })?;
        let is_mantle = url.host().starts_with("bedrock-mantle.");
        let service = if is_mantle { "bedrock-mantle" } else { "bedrock" };
        let scope = Arc::new(SigningScope { region: region.to_owned(), service });
        Ok(Self { scope, credentials: Arc::new(CredentialCache::new(source)) })
    }

    /// Returns the region that requests are signed for.
    pub fn region(&self) -> &str {
        &self.scope.region
    }

    /// Checks that there are credentials.
    ///
    /// # Errors
    ///
    /// There are none, or they have expired.
    pub async fn check(&self) -> Result<(), AwsError> {
        self.credentials.get(Timestamp::now()).await.map(drop)
    }

    /// Signs a request as it leaves.
    pub(crate) async fn sign(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &mut HeaderMap,
        body: &[u8],
    ) -> Result<(), AwsError> {
        let now = Timestamp::now();
        let credentials = self.credentials.get(now).await?;
        sign(&SignedParts { method, uri, body }, headers, &credentials, &self.scope, now);
        Ok(())
    }
}

/// Returns the region in a host of AWS, also of a private endpoint: `bedrock-runtime.REGION.amazonaws.com`,
/// `NAME.bedrock-runtime.REGION.vpce.amazonaws.com`, `bedrock-mantle.REGION.api.aws`.
fn host_region(host: &str) -> Option<&str> {
    let is_aws = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"].iter().any(|end| host.ends_with(end));
    let mut labels = host.split('.').skip_while(|label| !label.starts_with("bedrock"));
    labels.nth(1).filter(|label| is_aws && label.contains('-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::upstream::aws::credentials::AwsCredentials;

    #[test]
    fn region_is_chosen_set_or_default() {
        let signer = |url: &str, region, default| {
            let keys = AwsCredentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None).unwrap();
            AwsSigner::new(AwsCredentialSource::from_keys(keys), &url.parse().unwrap(), region, default)
        };
        for (url, region, default, expected, service) in [
            ("https://bedrock-runtime.eu-west-1.amazonaws.com", None, Some("us-east-1"), "eu-west-1", "bedrock"),
            ("https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com", None, None, "us-gov-west-1", "bedrock"),
            ("https://vpce-1.bedrock-runtime.us-east-2.vpce.amazonaws.com", None, None, "us-east-2", "bedrock"),
            ("https://bedrock-mantle.us-west-2.api.aws/anthropic", None, None, "us-west-2", "bedrock-mantle"),
            ("https://bedrock-runtime.eu-west-1.amazonaws.com", Some("eu-west-2"), None, "eu-west-2", "bedrock"),
            ("https://gateway.example/bedrock", None, Some("us-east-1"), "us-east-1", "bedrock"),
        ] {
            let signer = signer(url, region, default).unwrap();
            assert_eq!((signer.region(), signer.scope.service), (expected, service), "{url}");
        }
        for url in ["http://127.0.0.1:1", "https://bedrock-runtime.eu-west-1.example"] {
            assert!(signer(url, None, None).unwrap_err().to_string().contains("AWS_REGION"), "{url}");
        }
        assert!(signer("http://127.0.0.1:1", Some("eu/west"), None).is_err());
    }
}
