//! Reading and decoding the body of a request.
//!
//! A body is read up to a limit, and a client that stops sending or sends too slowly is disconnected. Compressed bodies
//! are decoded up to the same limit; the original bytes are kept as well, so that an unfolded request is forwarded
//! unmodified. Both reserve memory in the body budget first.

use std::io::Read;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HeaderMap};
use tokio::runtime::Handle;

use crate::proxy::downstream::body_budget::{BodyBudget, BodyReservation, BudgetExhausted};
use crate::proxy::state::AppState;

/// Minimum rate of a client, in bytes per second (slow-loris protection).
const MIN_BYTES_PER_SEC: usize = 1 << 10;
/// Bytes decoded at a time.
const DECODE_CHUNK_BYTES: usize = 64 << 10;
/// Time for which the rest of a rejected body is drained.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

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
        let raw = match read_raw(headers, &mut body, limit, timeout, budget.reservation()).await {
            Ok(raw) => raw,
            Err(error) => {
                // Most clients read only after they have sent everything. A client that sent `Expect` gets the error at once.
                if matches!(error, BodyError::TooLarge { .. } | BodyError::BudgetExhausted)
                    && !headers.contains_key(EXPECT)
                {
                    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
                    let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
                }
                return Err(error);
            }
        };
        let decoded = match headers.get(CONTENT_ENCODING) {
            None => Some(raw.clone()),
            Some(encoding) if matches!(encoding.as_bytes(), b"" | b"identity") => Some(raw.clone()),
            Some(encoding) => {
                let (encoding, raw, reservation, runtime) =
                    (encoding.clone(), raw.clone(), budget.reservation(), Handle::current());
                let decoding = move || decode(encoding.as_bytes(), &raw, limit, reservation, &runtime);
                tokio::task::spawn_blocking(decoding).await.unwrap_or(Ok(None))?
            }
        };
        Ok(Self { raw, decoded })
    }
}

/// Reads the body as it arrives.
async fn read_raw(
    headers: &HeaderMap,
    body: &mut Body,
    limit: usize,
    timeout: Duration,
    mut reservation: BodyReservation,
) -> Result<Bytes, BodyError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let announced = announced.unwrap_or(0);
    if announced > limit {
        return Err(BodyError::TooLarge { limit });
    }
    reservation.grow(announced).await?;
    let mut raw = BytesMut::with_capacity(announced);
    let started_at = Instant::now();
    loop {
        if started_at.elapsed() > timeout + Duration::from_secs((raw.len() / MIN_BYTES_PER_SEC) as u64) {
            return Err(BodyError::TimedOut);
        }
        let frame = tokio::time::timeout(timeout, body.frame()).await.map_err(|_| BodyError::TimedOut)?;
        let Some(frame) = frame else { return Ok(reservation.into_bytes(raw)) };
        let Ok(data) = frame.map_err(|_| BodyError::Disconnected)?.into_data() else { continue };
        if raw.len() + data.len() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        reservation.grow(raw.len() + data.len()).await?;
        raw.extend_from_slice(&data);
    }
}

/// Decodes a compressed body. Blocking: must not run on a thread that serves connections.
fn decode(
    encoding: &[u8],
    raw: &[u8],
    limit: usize,
    mut reservation: BodyReservation,
    runtime: &Handle,
) -> Result<Option<Bytes>, BudgetExhausted> {
    let mut reader: Box<dyn Read + '_> = match encoding.to_ascii_lowercase().as_slice() {
        b"gzip" | b"x-gzip" => Box::new(flate2::read::MultiGzDecoder::new(raw)),
        b"deflate" => Box::new(flate2::read::ZlibDecoder::new(raw)),
        b"zstd" => match zstd::stream::read::Decoder::with_buffer(raw) {
            Ok(reader) => Box::new(reader),
            Err(_) => return Ok(None),
        },
        b"br" => Box::new(brotli_decompressor::Decompressor::new(raw, 4096)),
        _ => return Ok(None),
    };
    let mut decoded = Vec::new();
    loop {
        runtime.block_on(reservation.grow(decoded.len() + DECODE_CHUNK_BYTES))?;
        match reader.by_ref().take(DECODE_CHUNK_BYTES as u64).read_to_end(&mut decoded) {
            Ok(_) if decoded.len() > limit => return Ok(None),
            Ok(DECODE_CHUNK_BYTES) => {}
            Ok(_) => return Ok(Some(reservation.into_bytes(decoded))),
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
        let budget = BodyBudget::new(text.len() + DECODE_CHUNK_BYTES, Duration::from_millis(20));
        let decoded = |encoding: &[u8], sent: &[u8], limit: usize| {
            decode(encoding, sent, limit, budget.reservation(), runtime.handle())
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
}
