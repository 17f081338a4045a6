//! The files of the dashboard, embedded at build time. They contain no data, so they need no token.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// An embedded file.
struct AssetFile {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const ASSETS: [AssetFile; 4] = [
    AssetFile {
        path: "/foldline/",
        content_type: "text/html; charset=utf-8",
        bytes: include_bytes!("../../../dashboard/dist/index.html"),
    },
    AssetFile {
        path: "/foldline/app.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../../../dashboard/dist/app.js"),
    },
    AssetFile {
        path: "/foldline/app.css",
        content_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../../../dashboard/dist/app.css"),
    },
    AssetFile {
        path: "/foldline/favicon.svg",
        content_type: "image/svg+xml",
        bytes: include_bytes!("../../../dashboard/dist/favicon.svg"),
    },
];

/// No inline script or style, nothing from elsewhere, not in a frame.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the file at a path of the dashboard; none for other paths. A path without its slash is redirected.
pub(crate) fn find_asset(path: &str, request: &HeaderMap) -> Option<Response> {
    if path == "/foldline" {
        // Relative, because the path may have had a token before it.
        return Some((StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "foldline/")]).into_response());
    }
    let asset = ASSETS.iter().find(|asset| asset.path == path)?;
    let etag = format!("\"{}\"", &blake3::hash(asset.bytes).to_hex()[..16]);
    let is_current = request.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes());
    let (status, body) = match is_current {
        true => (StatusCode::NOT_MODIFIED, Body::empty()),
        false => (StatusCode::OK, Body::from(asset.bytes)),
    };
    let headers = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::ETAG, etag.as_str()),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    Some((status, headers, body).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_needs_nothing_inline_and_nothing_from_elsewhere() {
        let page = std::str::from_utf8(ASSETS[0].bytes).unwrap();
        assert!(!page.contains("<style") && !page.contains("style=") && !page.contains("https://"), "{page}");
        assert!(page.matches("<script").count() == 1 && page.contains("src=\"./app.js\""), "{page}");
    }

    #[test]
    fn unchanged_file_is_not_sent_again() {
        let first = find_asset("/foldline/app.js", &HeaderMap::new()).unwrap();
        let etag = first.headers()[header::ETAG].clone();
        assert!(first.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().contains("default-src 'none'"));
        let again = find_asset("/foldline/app.js", &HeaderMap::from_iter([(header::IF_NONE_MATCH, etag)])).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(find_asset("/foldline/../secret", &HeaderMap::new()).is_none());
        let redirect = find_asset("/foldline", &HeaderMap::new()).unwrap();
        assert_eq!(redirect.headers()[header::LOCATION], "foldline/");
    }
}
