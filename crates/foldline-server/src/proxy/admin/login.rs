//! The cookie in which a browser keeps a token, and the check that a change comes from the dashboard itself.

use axum::http::{HeaderMap, HeaderValue, header};

/// Name of the cookie.
const COOKIE_NAME: &str = "foldline_token";
/// Header that a request which changes something must carry; other origins cannot set it without a preflight, which is
/// never answered.
const CHANGE_HEADER: &str = "x-foldline-request";

/// Returns the token in the cookie of a request.
pub(crate) fn cookie_token(headers: &HeaderMap) -> Option<Vec<u8>> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find_map(|(name, value)| if name == COOKIE_NAME { decode_hex(value) } else { None })
}

/// Removes the cookie from a request that is forwarded; other cookies stay.
pub(crate) fn remove_cookie(headers: &mut HeaderMap) {
    let is_own = |pair: &str| pair.trim().split_once('=').is_some_and(|(name, _)| name == COOKIE_NAME);
    let values: Vec<HeaderValue> = headers.get_all(header::COOKIE).iter().cloned().collect();
    if !values.iter().any(|value| value.to_str().is_ok_and(|text| text.split(';').any(is_own))) {
        return;
    }
    headers.remove(header::COOKIE);
    for value in values {
        let kept =
            value.to_str().map(|text| text.split(';').filter(|pair| !is_own(pair)).collect::<Vec<_>>().join(";"));
        let kept = kept.map_or(Ok(value), |kept| kept.trim().parse());
        if let Some(kept) = kept.ok().filter(|value: &HeaderValue| !value.is_empty()) {
            headers.append(header::COOKIE, kept);
        }
    }
}

/// Removes attempts of an upstream to set the cookie; its other cookies stay.
pub(crate) fn remove_set_cookie(headers: &mut HeaderMap) {
    let is_own = |value: &HeaderValue| {
        let text = value.as_bytes().trim_ascii_start();
        text.strip_prefix(COOKIE_NAME.as_bytes()).is_some_and(|rest| rest.trim_ascii_start().starts_with(b"="))
    };
    if headers.get_all(header::SET_COOKIE).iter().any(is_own) {
        let kept: Vec<HeaderValue> =
            headers.get_all(header::SET_COOKIE).iter().filter(|value| !is_own(value)).cloned().collect();
        headers.remove(header::SET_COOKIE);
        for value in kept {
            headers.append(header::SET_COOKIE, value);
        }
    }
}

/// Returns the header that sets the cookie; an empty token clears it.
pub(crate) fn set_cookie(token: &str, is_tls: bool) -> Option<HeaderValue> {
    let value: String = token.bytes().map(|byte| format!("{byte:02x}")).collect();
    let (age, secure) = (if token.is_empty() { "; Max-Age=0" } else { "" }, if is_tls { "; Secure" } else { "" });
    format!("{COOKIE_NAME}={value}; Path=/foldline; HttpOnly; SameSite=Strict{age}{secure}").parse().ok()
}

/// Returns true if a request that changes something comes from the dashboard or a program, not from another page.
pub(crate) fn is_own_change(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_same_site = text("sec-fetch-site").is_none_or(|site| site == "same-origin" || site == "none");
    let host = text("host").unwrap_or_default();
    let is_same_origin = text("origin")
        .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host)));
    text(CHANGE_HEADER) == Some("1") && is_same_site && is_same_origin
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes().chunks(2);
    bytes.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn token_survives_its_cookie() {
        let cookie = set_cookie("t;\"=1", true).unwrap();
        let cookie = cookie.to_str().unwrap();
        assert!(cookie.ends_with("; Path=/foldline; HttpOnly; SameSite=Strict; Secure"), "{cookie}");
        let sent = format!("other=1; {}", cookie.split(';').next().unwrap());
        assert_eq!(cookie_token(&headers(&[("cookie", &sent)])).unwrap(), b"t;\"=1");
        assert_eq!(cookie_token(&headers(&[("cookie", "foldline_token=zz")])), None);
        assert!(set_cookie("", false).unwrap().to_str().unwrap().contains("Max-Age=0"));
    }

    #[test]
    fn cookie_is_removed_from_forwarded_requests() {
        let cookies = |list: &[&str]| {
            let mut map = headers(&list.iter().map(|value| ("cookie", *value)).collect::<Vec<_>>());
            remove_cookie(&mut map);
            map.get_all("cookie").iter().map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(cookies(&["a=1; foldline_token=7431; b=2"]), ["a=1; b=2"]);
        assert_eq!(cookies(&["foldline_token=7431", "c=3"]), ["c=3"]);
        assert_eq!(cookies(&["a=1; foldline_token2=x"]), ["a=1; foldline_token2=x"]);
        assert!(cookies(&[" foldline_token=7431"]).is_empty());
    }

    #[test]
    fn upstream_cannot_set_the_cookie() {
        let own = [("set-cookie", "foldline_token=7431; Path=/"), ("set-cookie", " foldline_token =1")];
        let mut all = headers(&[&own[..], &[("set-cookie", "a=1"), ("set-cookie", "foldline_tokens=2")]].concat());
        remove_set_cookie(&mut all);
        assert_eq!(all.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "foldline_tokens=2"]);
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
