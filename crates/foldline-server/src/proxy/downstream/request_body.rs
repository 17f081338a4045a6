//! Reading and decoding the body of a request.
//!
//! A body is read up to a limit, and a client that stops sending or sends too slowly is disconnected. Compressed bodies
//! are decoded up to the same limit; the original bytes are kept as well, so that an unfolded request is forwarded
//! unmodified. Both reserve memory in the body budget first.

use std::io::Read;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HeaderMap};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::proxy::downstream::body_budget::{BodyBudget, BodyBuffer, BudgetExhausted};
use crate::proxy::downstream::client_pace::ClientPace;
use crate::proxy::state::AppState;

/// Bytes decoded at a time.
const DECODE_CHUNK_BYTES: usize = 64 << 10;
/// Largest window of a zstd body: 8 MB, the limit of zstd over HTTP (RFC 9659).
const MAX_ZSTD_WINDOW_LOG: u32 = 23;
/// Largest window of a brotli body: 16 MB (RFC 7932).
const MAX_BROTLI_WINDOW_BYTES: usize = 16 << 20;
/// Time for which the rest of a rejected body is drained.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a request until something reads it.
pub(crate) struct UnreadBody {
    body: Option<Body>,
    /// True if the client sends the body only after it was asked to.
    is_expected: bool,
}

impl UnreadBody {
    pub(crate) fn new(headers: &HeaderMap, body: Body) -> Self {
        Self { body: Some(body), is_expected: headers.contains_key(EXPECT) }
    }

    /// Returns the body, which is read from now on by the caller.
    pub(crate) fn take(&mut self) -> Body {
        self.body.take().unwrap_or_default()
    }

    /// Drains the body of a rejected request for a while. Most clients read only after they have sent everything, and lose
    /// the response if the connection is closed before. A client that sent `Expect` gets it at once.
    pub(crate) async fn drain(self) {
        let Some(mut body) = self.body.filter(|_| !self.is_expected) else { return };
        let rest = async { while let Some(Ok(_)) = body.frame().await {} };
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
    }
}

/// The body of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestBody {
    /// As the client sent it.
    pub(crate) raw: Bytes,
    /// Decoded body; none if the encoding is unknown or the data is damaged.
    pub(crate) decoded: Option<Bytes>,
}

/// The reason why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// The body exceeds the size limit, in bytes.
    TooLarge { limit: usize },
    /// The memory budget of all bodies is exhausted.
    BudgetExhausted,
    /// The client stopped sending, or sends too slowly.
    TimedOut,
    /// The client disconnected.
    Disconnected,
}

impl From<BudgetExhausted> for BodyError {
    fn from(BudgetExhausted: BudgetExhausted) -> Self {
        BodyError::BudgetExhausted
    }
}

impl RequestBody {
    /// Reads and decodes a body.
    pub(crate) async fn read(state: &AppState, headers: &HeaderMap, body: Body) -> Result<Self, BodyError> {
        let (limits, timeouts) = (state.settings.limits, state.settings.timeouts);
        let read = Self::read_within(headers, body, limits.body_bytes, timeouts.client_read, &state.body_budget).await;
        read.inspect_err(|error| {
            if *error == BodyError::BudgetExhausted {
                state.metrics.rejected_bodies.inc();
            }
        })
    }

    async fn read_within(
        headers: &HeaderMap,
        mut body: Body,
        limit: usize,
        timeout: Duration,
        budget: &BodyBudget,
    ) -> Result<Self, BodyError> {
        let raw = match read_raw(headers, &mut body, limit, timeout, budget).await {
            Ok(raw) => raw,
            Err(error) => {
                if matches!(error, BodyError::TooLarge { .. } | BodyError::BudgetExhausted) {
                    UnreadBody::new(headers, body).drain().await;
                }
                return Err(error);
            }
        };
        let decoded = match headers.get(CONTENT_ENCODING) {
            None => Some(raw.clone()),
            Some(encoding) if is_identity(encoding.as_bytes()) => Some(raw.clone()),
            Some(encoding) => {
                let (encoding, raw, runtime) = (encoding.clone(), raw.clone(), Handle::current());
                let decoded = BodyBuffer::new(limit, budget);
                let decoding = move || decode(encoding.as_bytes(), &raw, decoded, &runtime);
                tokio::task::spawn_blocking(decoding).await.unwrap_or(Ok(None))?
            }
        };
        Ok(Self { raw, decoded })
    }
}

fn is_identity(encoding: &[u8]) -> bool {
    encoding.is_empty() || encoding.eq_ignore_ascii_case(b"identity")
}

/// Reads the body as it arrives.
async fn read_raw(
    headers: &HeaderMap,
    body: &mut Body,
    limit: usize,
    timeout: Duration,
    budget: &BodyBudget,
) -> Result<Bytes, BodyError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|announced| announced > limit) {
        return Err(BodyError::TooLarge { limit });
    }
    let mut raw = BodyBuffer::new(announced.unwrap_or(limit), budget);
    let mut pace = ClientPace::new(timeout);
    loop {
        let frame = tokio::time::timeout(timeout, body.frame()).await.map_err(|_| BodyError::TimedOut)?;
        let Some(frame) = frame else { return Ok(raw.into_bytes()) };
        let Ok(data) = frame.map_err(|_| BodyError::Disconnected)?.into_data() else { continue };
        if !pace.record(data.len()) || raw.reservation().blocks_reserve_for(timeout) {
            return Err(BodyError::TimedOut);
        }
        if raw.len() + data.len() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        let started_at = Instant::now();
        raw.push(&data).await?;
        pace.exclude(started_at.elapsed());
    }
}

/// Decodes a compressed body. Blocking: must not run on a thread that serves connections.
fn decode(
    encoding: &[u8],
    raw: &[u8],
    mut decoded: BodyBuffer,
    runtime: &Handle,
) -> Result<Option<Bytes>, BudgetExhausted> {
    let mut window_bytes = 0;
    let mut reader: Box<dyn Read + '_> = match encoding.to_ascii_lowercase().as_slice() {
        b"gzip" | b"x-gzip" => Box::new(flate2::read::MultiGzDecoder::new(raw)),
        b"deflate" => Box::new(flate2::read::ZlibDecoder::new(raw)),
        b"zstd" => {
            window_bytes = 1 << MAX_ZSTD_WINDOW_LOG;
            let decoder = zstd::stream::read::Decoder::with_buffer(raw).and_then(|mut decoder| {
                decoder.window_log_max(MAX_ZSTD_WINDOW_LOG)?;
                Ok(decoder)
            });
            match decoder {
                Ok(reader) => Box::new(reader),
                Err(_) => return Ok(None),
            }
        }
        b"br" => {
            window_bytes = MAX_BROTLI_WINDOW_BYTES;
            Box::new(brotli_decompressor::Decompressor::new(raw, 4096))
        }
        _ => return Ok(None),
    };
    loop {
        runtime.block_on(decoded.make_room(DECODE_CHUNK_BYTES, window_bytes))?;
        match reader.by_ref().take(DECODE_CHUNK_BYTES as u64).read_to_end(decoded.bytes_mut()) {
            Ok(_) if decoded.len() > decoded.max_len() => return Ok(None),
            Ok(DECODE_CHUNK_BYTES) => {}
            Ok(_) => return Ok(Some(decoded.into_bytes())),
            Err(_) => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn decoding_respects_size_limit_and_body_budget() {
        let text = b"{\"model\":\"m\"}".repeat(20_000);
        let gzip = {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&text).unwrap();
            encoder.finish().unwrap()
        };
        let zstd = zstd::encode_all(&text[..], 3).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let budget = BodyBudget::new(text.len() + DECODE_CHUNK_BYTES, 1 << 20, Duration::from_millis(20));
        let decoded = |encoding: &[u8], sent: &[u8], limit: usize| {
            decode(encoding, sent, BodyBuffer::new(limit, &budget), runtime.handle())
        };
        for (encoding, sent) in [(&b"gzip"[..], &gzip), (b"ZSTD", &zstd)] {
            let body = decoded(encoding, sent, 1 << 20).unwrap().unwrap();
            assert_eq!(body, text);
            assert_eq!(decoded(encoding, sent, 1 << 20), Err(BudgetExhausted), "while another one is held");
            drop(body);
            assert_eq!(decoded(encoding, sent, text.len() - 1), Ok(None), "decompression bomb");
            assert_eq!(decoded(encoding, &sent[..sent.len() / 2], 1 << 20), Ok(None), "truncated data");
        }
        assert_eq!(decoded(b"unheard-of", &text, 1 << 20), Ok(None));
        assert_eq!(budget.reserved_bytes(), 0);
    }

    /// A zstd frame of a few bytes can ask its decoder for a window of 128 MB.
    #[test]
    fn window_of_a_decoder_is_limited() {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(27).unwrap();
        encoder.write_all(&vec![b' '; 1 << 20]).unwrap();
        let bomb = encoder.finish().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let budget = BodyBudget::new(1 << 30, 1 << 26, Duration::from_millis(20));
        let buffer = BodyBuffer::new(1 << 26, &budget);
        assert_eq!(decode(b"zstd", &bomb, buffer, runtime.handle()), Ok(None));
    }
}
