//! AWS Signature Version 4 over the headers of a request.
//!
//! Pure: time and credentials are arguments. Only `host`, `content-type` and the headers of AWS are signed, because others
//! may change on the way.

use foldline::wire::encode_path_segment;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Uri};
use jiff::Timestamp;
use ring::{digest, hmac};

use crate::proxy::upstream::aws::credentials::AwsCredentials;
use crate::proxy::upstream::outbound::percent_decoded;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
/// Headers that belong to a signature. A request must not have those of two signatures.
const SIGNATURE_HEADERS: [HeaderName; 4] =
    [AUTHORIZATION, DATE, SECURITY_TOKEN, HeaderName::from_static("x-amz-content-sha256")];
/// Header that load balancers write after the signature.
const TRACE_ID: &str = "x-amzn-trace-id";

/// The service and the region that a signature is valid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SigningScope {
    pub(crate) region: String,
    pub(crate) service: &'static str,
}

/// The parts of a request that a signature covers, besides its headers.
pub(crate) struct SignedParts<'r> {
    pub(crate) method: &'r Method,
    pub(crate) uri: &'r Uri,
    pub(crate) body: &'r [u8],
}

/// Signs a request: replaces the headers of an earlier signature in `headers`.
pub(crate) fn sign(
    request: &SignedParts<'_>,
    headers: &mut HeaderMap,
    credentials: &AwsCredentials,
    scope: &SigningScope,
    now: Timestamp,
) {
    remove_signature(headers);
    let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let date = &time[..8];
    insert(headers, DATE, &time);
    if let Some(token) = &credentials.session_token {
        insert(headers, SECURITY_TOKEN, token);
    }
    let (names, canonical_headers) = canonical_headers(request.uri, headers);
    let canonical = [
        format!("{}\n{}\n", request.method, canonical_path(request.uri.path())).as_bytes(),
        format!("{}\n", canonical_query(request.uri.query().unwrap_or_default())).as_bytes(),
        &canonical_headers,
        format!("\n{names}\n{}", hex_hash(request.body)).as_bytes(),
    ]
    .concat();
    let SigningScope { region, service } = scope;
    let scope = format!("{date}/{region}/{service}/aws4_request");
    let to_sign = format!("{ALGORITHM}\n{time}\n{scope}\n{}", hex_hash(&canonical));
    let secret = format!("AWS4{}", credentials.secret_access_key);
    let key = [date, region, service, "aws4_request"].iter().fold(secret.into_bytes(), |key, part| mac(&key, part));
    let (id, signature) = (&credentials.access_key_id, hex(&mac(&key, &to_sign)));
    let value = format!("{ALGORITHM} Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}");
    insert(headers, AUTHORIZATION, &value);
}

/// Removes the headers of a signature.
pub(crate) fn remove_signature(headers: &mut HeaderMap) {
    SIGNATURE_HEADERS.iter().for_each(|name| drop(headers.remove(name)));
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // Credentials were checked when they were read.
    if let Ok(mut value) = HeaderValue::from_str(value) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
}

/// Returns the names of the signed headers, and these headers with their values.
fn canonical_headers(uri: &Uri, headers: &HeaderMap) -> (String, Vec<u8>) {
    let is_signed =
        |name: &&HeaderName| *name == CONTENT_TYPE || name.as_str().starts_with("x-amz") && name.as_str() != TRACE_ID;
    let mut names: Vec<&str> = headers.keys().filter(is_signed).map(HeaderName::as_str).chain(["host"]).collect();
    names.sort_unstable();
    let mut lines = Vec::new();
    for name in &names {
        lines.extend_from_slice(name.as_bytes());
        lines.push(b':');
        match *name {
            "host" => lines.extend_from_slice(host(uri).as_bytes()),
            name => {
                let values = headers.get_all(name).iter().map(|value| single_spaced(value.as_bytes()));
                lines.extend_from_slice(&values.collect::<Vec<_>>().join(&b","[..]));
            }
        }
        lines.push(b'\n');
    }
    (names.join(";"), lines)
}

/// Returns the value of the header `Host`: without the port if it is that of the scheme.
fn host(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    let default = if uri.scheme_str() == Some("http") { 80 } else { 443 };
    match uri.port_u16().filter(|port| *port != default) {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn single_spaced(value: &[u8]) -> Vec<u8> {
    let words = value.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(&b' ')
}

/// Returns a path without empty and dot segments, each segment encoded once more: `%3A` becomes `%253A`.
fn canonical_path(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let is_folder = path.ends_with('/') && !kept.is_empty();
    let segments: String = kept.iter().map(|segment| format!("/{}", encode_path_segment(segment))).collect();
    if segments.is_empty() || is_folder { segments + "/" } else { segments }
}

/// Returns the parameters of a query in order, each encoded once.
fn canonical_query(query: &str) -> String {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let encode = |text: &str| encode_path_segment(percent_decoded(text));
    let mut pairs: Vec<(String, String)> = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encode(name), encode(value)))
        .collect();
    pairs.sort_unstable();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

fn hex_hash(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signs with the example credentials of AWS, at 2015-08-30 12:36:00 UTC. Returns the headers of the request.
    fn signed(request: (&str, &str), headers: &[(&str, &str)], body: &[u8], scope: (&str, &'static str)) -> HeaderMap {
        let mut headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap()))
            .collect();
        let (method, uri): (Method, Uri) = (request.0.parse().unwrap(), request.1.parse().unwrap());
        let token = request.1.contains("arn%3A").then_some("SESSION/TOKEN==");
        let credentials =
            AwsCredentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token).unwrap();
        let scope = SigningScope { region: scope.0.to_owned(), service: scope.1 };
        let now: Timestamp = "2015-08-30T12:36:00Z".parse().unwrap();
        sign(&SignedParts { method: &method, uri: &uri, body }, &mut headers, &credentials, &scope, now);
        headers
    }

    const JSON: (&str, &str) = ("content-type", "application/json");

    /// Signatures of the examples that AWS publishes.
    #[test]
    fn published_examples_have_their_signatures() {
        let form = ("content-type", "application/x-www-form-urlencoded");
        let utf8_form = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");
        for (request, headers, body, service, signature) in [
            (
                ("GET", "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08"),
                vec![utf8_form],
                "",
                "iam",
                "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
            ),
            (
                ("GET", "https://example.amazonaws.com/"),
                vec![],
                "",
                "service",
                "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
            ),
            (
                ("POST", "https://example.amazonaws.com/"),
                vec![form],
                "Param1=value1",
                "service",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
        ] {
            let headers = signed(request, &headers, body.as_bytes(), ("us-east-1", service));
            let value = headers["authorization"].to_str().unwrap();
            assert!(value.ends_with(&format!("Signature={signature}")), "{}: {value}", request.1);
        }
    }

    /// Signatures that botocore 1.44.3 writes for the same requests.
    #[test]
    fn signatures_are_those_of_botocore() {
        let large = "x".repeat(100_000);
        let runtime = |path: &str| format!("https://bedrock-runtime.us-east-1.amazonaws.com{path}");
        let trace = ("x-amzn-bedrock-trace", "  ENABLED   FULL ");
        for (method, uri, headers, body, scope, names, signature) in [
            (
                "POST",
                runtime("/model/anthropic.claude-3%3A0/converse"),
                vec![JSON],
                r#"{"messages":[]}"#,
                ("us-east-1", "bedrock"),
                "content-type;host;x-amz-date",
                "4e19d46113175a27a27ddf5d9eb1cf4b722853a0730b9b5b8fb016dcc0c371f3",
            ),
            (
                "POST",
                runtime("/model/anthropic.claude-3:0/converse"),
                vec![JSON],
                r#"{"messages":[]}"#,
                ("us-east-1", "bedrock"),
                "content-type;host;x-amz-date",
                "dea373fea3445a9c17b2f88b0ce1edc9b2a8b27c00f3d638b6286e1d183d3701",
            ),
            (
                "POST",
                runtime(
                    "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.amazon.nova-lite-v1%3A0/converse-stream",
                ),
                vec![JSON],
                "{\"text\":\"r\u{e9}sum\u{e9}\"}",
                ("us-east-1", "bedrock"),
                "content-type;host;x-amz-date;x-amz-security-token",
                "4552036be043889780608e2737c5e0e15da80c6667f73df02cddaffcadc250be",
            ),
            (
                "GET",
                "https://bedrock-mantle.eu-west-1.api.aws/v1/models?limit=10&after=a%20b%2Fc&empty=".to_owned(),
                vec![],
                "",
                ("eu-west-1", "bedrock-mantle"),
                "host;x-amz-date",
                "82eb2f6538ba2546596bd7e00945b6cd6f2a8eae839f8d0a955451a84143a049",
            ),
            (
                "POST",
                "http://127.0.0.1:8080/model//x/./y/../invoke".to_owned(),
                vec![JSON, trace],
                large.as_str(),
                ("eu-central-1", "bedrock"),
                "content-type;host;x-amz-date;x-amzn-bedrock-trace",
                "fb79e1aee1ffb3eb0542bb8cda6ddbc0d83e04a9f64320ac10716501ec22b836",
            ),
        ] {
            let headers = signed((method, &uri), &headers, body.as_bytes(), scope);
            let (region, service) = scope;
            let expected = format!(
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/{region}/{service}/aws4_request, \
                 SignedHeaders={names}, Signature={signature}"
            );
            assert_eq!(headers["authorization"], expected, "{uri}");
        }
    }

    #[test]
    fn headers_of_an_earlier_signature_are_replaced() {
        let earlier = [
            JSON,
            ("authorization", "AWS4-HMAC-SHA256 Credential=other"),
            ("x-amz-date", "20000101T000000Z"),
            ("x-amz-security-token", "of another"),
            ("x-amz-content-sha256", "0"),
        ];
        let request = ("POST", "https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse");
        let again = signed(request, &earlier, b"{}", ("us-east-1", "bedrock"));
        assert_eq!(again, signed(request, &[JSON], b"{}", ("us-east-1", "bedrock")));
        let shown = format!("{again:?}");
        assert!(!shown.contains("Signature=") && !shown.contains("AKIDEXAMPLE"), "{shown}");
    }

    #[test]
    fn forwarding_headers_are_not_signed() {
        let others = [JSON, ("x-amzn-trace-id", "Root=1"), ("x-forwarded-for", "10.0.0.1"), ("user-agent", "boto3")];
        let request = ("POST", "https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse");
        let value = signed(request, &others, b"{}", ("us-east-1", "bedrock"))["authorization"].clone();
        assert_eq!(value, signed(request, &[JSON], b"{}", ("us-east-1", "bedrock"))["authorization"]);
    }

    #[test]
    fn paths_and_queries_have_one_form() {
        for (path, expected) in [("", "/"), ("/", "/"), ("/a/", "/a/"), ("/a/../../b", "/b"), ("/a%2Fb", "/a%252Fb")] {
            assert_eq!(canonical_path(path), expected, "{path}");
        }
        for (query, expected) in
            [("", ""), ("b=2&a=/&a=%2f", "a=%2F&a=%2F&b=2"), ("flag", "flag="), ("a=b=c", "a=b%3Dc")]
        {
            assert_eq!(canonical_query(query), expected, "{query}");
        }
    }
}
