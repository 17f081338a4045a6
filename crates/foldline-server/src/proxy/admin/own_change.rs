//! The check that a change comes from the dashboard itself, and not from a page of another origin.

use axum::http::HeaderMap;

/// Header that a request which changes something must carry; other origins cannot set it without a preflight, which is
/// never answered.
const CHANGE_HEADER: &str = "x-foldline-request";

/// Returns true if a request that changes something comes from the dashboard or a program, not from another page.
pub(crate) fn is_own_change(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_same_site = text("sec-fetch-site").is_none_or(|site| site == "same-origin" || site == "none");
    let host = text("host").unwrap_or_default();
    let is_same_origin = text("origin")
        .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host)));
    text(CHANGE_HEADER) == Some("1") && is_same_site && is_same_origin
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::header;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn change_from_another_origin_is_rejected() {
        let own = [("host", "127.0.0.1:8787"), ("x-foldline-request", "1")];
        let with = |more: &[(&'static str, &str)]| is_own_change(&headers(&[&own[..], more].concat()));
        assert!(with(&[]) && with(&[("origin", "http://127.0.0.1:8787"), ("sec-fetch-site", "same-origin")]));
        assert!(!with(&[("origin", "http://evil.example")]) && !with(&[("origin", "null")]));
        assert!(!with(&[("sec-fetch-site", "cross-site")]));
        assert!(!is_own_change(&headers(&own[..1])), "the header is required");
    }
}
