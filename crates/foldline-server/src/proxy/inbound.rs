//! A request's body, whole and decoded.
//!
//! A body is read up to a limit, and a client that stops sending, or drips, is let go. Compressed bodies are
//! decoded to be looked at, up to the same limit; what was sent is kept beside it, so that a request
//! that is not folded goes out as it came.

use std::io::Read;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};

/// Bytes a second below which a client does not send but hold a place.
const DRIPS: usize = 1 << 10;

/// The body of a request.
#[derive(Clone, Debug)]
pub(crate) struct Inbound {
    /// As the client sent it.
    pub(crate) sent: Bytes,
    /// What it says; `None` when it is compressed in a way that is not known here, or damaged.
    pub(crate) plain: Option<Bytes>,
}

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is longer than the limit.
    TooLarge,
    /// The client stopped sending, or drips.
    Stalled,
    /// The client is gone.
    Gone,
}

impl Inbound {
    pub(crate) async fn read(
        headers: &HeaderMap,
        mut body: Body,
        limit: usize,
        patience: Duration,
    ) -> Result<Self, Unread> {
        let announced = headers.get(CONTENT_LENGTH).and_then(|it| it.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|length| length > limit) {
            return Err(Unread::TooLarge);
        }
        // What is announced is not yet sent: memory grows with what comes.
        let mut sent = BytesMut::with_capacity(announced.unwrap_or(0).min(1 << 20));
        let began = Instant::now();
        loop {
            if began.elapsed() > patience + Duration::from_secs((sent.len() / DRIPS) as u64) {
                return Err(Unread::Stalled);
            }
            let piece = tokio::time::timeout(patience, body.frame()).await.map_err(|_| Unread::Stalled)?;
            let Some(piece) = piece else { break };
            let Ok(data) = piece.map_err(|_| Unread::Gone)?.into_data() else { continue };
            if sent.len() + data.len() > limit {
                return Err(Unread::TooLarge);
            }
            sent.extend_from_slice(&data);
        }
        let sent = sent.freeze();
        let plain = match headers.get(CONTENT_ENCODING).map(|it| it.as_bytes()) {
            None | Some(b"" | b"identity") => Some(sent.clone()),
            Some(encoding) => decoded(encoding, &sent, limit),
        };
        Ok(Self { sent, plain })
    }
}

fn decoded(encoding: &[u8], sent: &[u8], limit: usize) -> Option<Bytes> {
    let reader: Box<dyn Read + '_> = match encoding.to_ascii_lowercase().as_slice() {
        b"gzip" | b"x-gzip" => Box::new(flate2::read::MultiGzDecoder::new(sent)),
        b"deflate" => Box::new(flate2::read::ZlibDecoder::new(sent)),
        b"zstd" => Box::new(zstd::stream::read::Decoder::with_buffer(sent).ok()?),
        b"br" => Box::new(brotli_decompressor::Decompressor::new(sent, 4096)),
        _ => return None,
    };
    let mut plain = Vec::new();
    let read = reader.take(limit as u64 + 1).read_to_end(&mut plain).ok()?;
    (read <= limit).then(|| plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn compressed_bodies_are_decoded_up_to_the_limit() {
        let text = b"{\"model\":\"m\"}".repeat(100);
        let gzip = {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&text).unwrap();
            encoder.finish().unwrap()
        };
        let zstd = zstd::encode_all(&text[..], 3).unwrap();
        for (encoding, sent) in [(&b"gzip"[..], &gzip), (b"ZSTD", &zstd)] {
            assert_eq!(decoded(encoding, sent, 1 << 20).unwrap(), text);
            assert_eq!(decoded(encoding, sent, text.len() - 1), None, "a small body that grows large");
            assert_eq!(decoded(encoding, &sent[..sent.len() / 2], 1 << 20), None, "a damaged one");
        }
        assert_eq!(decoded(b"unheard-of", &text, 1 << 20), None);
    }
}
