//! A request's body, whole and decoded.
//!
//! A body is read up to a limit, and a client that stops sending, or drips, is let go. Compressed bodies are
//! decoded to be looked at, up to the same limit; what was sent is kept beside it, so that a request
//! that is not folded goes out as it came. Both take room before they take memory.

use std::io::Read;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HeaderMap};
use tokio::runtime::Handle;

use crate::proxy::downstream::body_budget::{BodyBudget, BodyReservation, BudgetExhausted};

/// Bytes a second below which a client does not send but hold a place.
const MIN_BYTES_PER_SEC: usize = 1 << 10;
/// Bytes that are decoded at a time.
const DECODE_CHUNK_BYTES: usize = 64 << 10;
/// How long a client may go on sending what is not wanted any more.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestBody {
    /// As the client sent it.
    pub(crate) raw: Bytes,
    /// What it says; `None` when it is compressed in a way that is not known here, or damaged.
    pub(crate) decoded: Option<Bytes>,
}

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It is longer than the limit.
    TooLarge,
    /// There is no room for it among the others.
    BudgetExhausted,
    /// The client stopped sending, or drips.
    TimedOut,
    /// The client is gone.
    Disconnected,
}

impl From<BudgetExhausted> for BodyError {
    fn from(BudgetExhausted: BudgetExhausted) -> Self {
        BodyError::BudgetExhausted
    }
}

impl RequestBody {
    pub(crate) async fn read(
        headers: &HeaderMap,
        mut body: Body,
        limit: usize,
        patience: Duration,
        room: &BodyBudget,
    ) -> Result<Self, BodyError> {
        let sent = match read_raw(headers, &mut body, limit, patience, room.reservation()).await {
            Ok(sent) => sent,
            Err(why) => {
                // Most clients listen only when they have sent everything. One that asked first is told at once.
                if matches!(why, BodyError::TooLarge | BodyError::BudgetExhausted) && !headers.contains_key(EXPECT) {
                    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
                    let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
                }
                return Err(why);
            }
        };
        let plain = match headers.get(CONTENT_ENCODING) {
            None => Some(sent.clone()),
            Some(encoding) if matches!(encoding.as_bytes(), b"" | b"identity") => Some(sent.clone()),
            Some(encoding) => {
                let (encoding, sent, taken, runtime) =
                    (encoding.clone(), sent.clone(), room.reservation(), Handle::current());
                let decoding = move || decode(encoding.as_bytes(), &sent, limit, taken, &runtime);
                tokio::task::spawn_blocking(decoding).await.unwrap_or(Ok(None))?
            }
        };
        Ok(Self { raw: sent, decoded: plain })
    }
}

/// The body as it comes.
async fn read_raw(
    headers: &HeaderMap,
    body: &mut Body,
    limit: usize,
    patience: Duration,
    mut taken: BodyReservation,
) -> Result<Bytes, BodyError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|it| it.to_str().ok()?.parse::<usize>().ok());
    let announced = announced.unwrap_or(0);
    if announced > limit {
        return Err(BodyError::TooLarge);
    }
    taken.grow(announced).await?;
    let mut sent = BytesMut::with_capacity(announced);
    let began = Instant::now();
    loop {
        if began.elapsed() > patience + Duration::from_secs((sent.len() / MIN_BYTES_PER_SEC) as u64) {
            return Err(BodyError::TimedOut);
        }
        let piece = tokio::time::timeout(patience, body.frame()).await.map_err(|_| BodyError::TimedOut)?;
        let Some(piece) = piece else { return Ok(taken.into_bytes(sent)) };
        let Ok(data) = piece.map_err(|_| BodyError::Disconnected)?.into_data() else { continue };
        if sent.len() + data.len() > limit {
            return Err(BodyError::TooLarge);
        }
        taken.grow(sent.len() + data.len()).await?;
        sent.extend_from_slice(&data);
    }
}

/// What a compressed body says. This takes as long as it takes, and does not belong on a thread that serves connections.
fn decode(
    encoding: &[u8],
    sent: &[u8],
    limit: usize,
    mut taken: BodyReservation,
    runtime: &Handle,
) -> Result<Option<Bytes>, BudgetExhausted> {
    let mut reader: Box<dyn Read + '_> = match encoding.to_ascii_lowercase().as_slice() {
        b"gzip" | b"x-gzip" => Box::new(flate2::read::MultiGzDecoder::new(sent)),
        b"deflate" => Box::new(flate2::read::ZlibDecoder::new(sent)),
        b"zstd" => match zstd::stream::read::Decoder::with_buffer(sent) {
            Ok(reader) => Box::new(reader),
            Err(_) => return Ok(None),
        },
        b"br" => Box::new(brotli_decompressor::Decompressor::new(sent, 4096)),
        _ => return Ok(None),
    };
    let mut plain = Vec::new();
    loop {
        runtime.block_on(taken.grow(plain.len() + DECODE_CHUNK_BYTES))?;
        match reader.by_ref().take(DECODE_CHUNK_BYTES as u64).read_to_end(&mut plain) {
            Ok(_) if plain.len() > limit => return Ok(None),
            Ok(DECODE_CHUNK_BYTES) => {}
            Ok(_) => return Ok(Some(taken.into_bytes(plain))),
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
        let room = BodyBudget::new(text.len() + DECODE_CHUNK_BYTES, Duration::from_millis(20));
        let decoded = |encoding: &[u8], sent: &[u8], limit: usize| {
            decode(encoding, sent, limit, room.reservation(), runtime.handle())
        };
        for (encoding, sent) in [(&b"gzip"[..], &gzip), (b"ZSTD", &zstd)] {
            let body = decoded(encoding, sent, 1 << 20).unwrap().unwrap();
            assert_eq!(body, text);
            assert_eq!(decoded(encoding, sent, 1 << 20), Err(BudgetExhausted), "while another one is held");
            drop(body);
            assert_eq!(decoded(encoding, sent, text.len() - 1), Ok(None), "a small body that grows large");
            assert_eq!(decoded(encoding, &sent[..sent.len() / 2], 1 << 20), Ok(None), "a damaged one");
        }
        assert_eq!(decoded(b"unheard-of", &text, 1 << 20), Ok(None));
        assert_eq!(room.reserved_bytes(), 0);
    }
}
