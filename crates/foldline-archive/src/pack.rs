//! Packs: originals that were kept together, compressed together.
//!
//! What a conversation folds at one crease repeats itself (the same files, the same paths, the same
//! test output), so one zstd frame over all of it is a quarter smaller than a frame each. A pack
//! is bounded, so that one original can be had without reading much else.
//!
//! Inside a pack each original is preceded by its description. Nothing here touches the database.

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::keep::LARGEST;
use crate::seal::Seal;
use crate::{Error, ErrorKind, Namespace};

/// Bytes of originals in a pack, before compression; a larger original has a pack of its own.
pub(crate) const SIZE: usize = 64 * 1024;

/// The level at which a crease costs about a millisecond; see docs/decisions.
const LEVEL: i32 = 3;

/// No pack is longer: it holds the largest original with its description.
const LONGEST: usize = LARGEST + 1024 * 1024;

/// What an original was, as far as it may not be read by others: stored with its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) arguments: Option<String>,
}

/// Where an original lies in its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) about: usize,
    pub(crate) length: usize,
}

impl Place {
    pub(crate) fn end(self) -> usize {
        self.start.saturating_add(self.about).saturating_add(self.length)
    }
}

/// A pack while it is filled.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    plain: Vec<u8>,
}

impl Filling {
    /// Whether another original of this length still goes in.
    pub(crate) fn takes(&self, length: usize) -> bool {
        self.plain.is_empty() || self.plain.len() + length <= SIZE
    }

    pub(crate) fn add(&mut self, about: &About, bytes: &[u8]) -> Result<Place, Error> {
        let start = self.plain.len();
        serde_json::to_writer(&mut self.plain, about)
            .map_err(|error| Error::new(ErrorKind::Io, format!("a description could not be written: {error}")))?;
        let place = Place { start, about: self.plain.len() - start, length: bytes.len() };
        self.plain.extend_from_slice(bytes);
        Ok(place)
    }

    /// The bytes of the pack and their length before compression.
    pub(crate) fn close(self, seal: &Seal, namespace: &Namespace) -> Result<(Vec<u8>, usize), Error> {
        let packed = zstd::bulk::compress(&self.plain, LEVEL)
            .map_err(|error| Error::new(ErrorKind::Io, format!("originals could not be compressed: {error}")))?;
        Ok((seal.close(namespace, "pack", packed)?, self.plain.len()))
    }
}

/// A pack that was read from disk.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    plain: Vec<u8>,
}

impl Opened {
    /// Opens a pack of `length` bytes. A damaged one is opened as far as it can be read: the hash of
    /// each original decides whether it is good.
    pub(crate) fn new(closed: Vec<u8>, length: usize, seal: &Seal, namespace: &Namespace) -> Result<Self, Error> {
        let packed = seal.open(namespace, "pack", closed)?;
        let length = length.min(LONGEST);
        let plain = zstd::bulk::decompress(&packed, length).unwrap_or_else(|_| {
            // A damaged frame ends early with an error; what came before it is kept.
            let mut plain = Vec::with_capacity(length.min(64 * SIZE));
            let _ = zstd::stream::read::Decoder::with_buffer(packed.as_slice())
                .and_then(|decoder| decoder.take(length as u64).read_to_end(&mut plain));
            plain
        });
        Ok(Self { plain })
    }

    /// The description and the bytes at a place; nothing when the pack does not reach there.
    pub(crate) fn at(&self, place: Place) -> Option<(&[u8], &[u8])> {
        self.plain.get(place.start..place.end()).map(|both| both.split_at(place.about))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_in_comes_out() {
        let namespace = Namespace::local();
        let mut filling = Filling::default();
        let about = About { tool: Some("read".into()), arguments: None };
        let first = filling.add(&about, b"one").unwrap();
        let second = filling.add(&About::default(), &[0, 255, 7]).unwrap();
        let (closed, length) = filling.close(&Seal::Open, &namespace).unwrap();
        assert_eq!(length, second.end());
        let opened = Opened::new(closed, length, &Seal::Open, &namespace).unwrap();
        assert_eq!(opened.at(first), Some((br#"{"tool":"read"}"#.as_slice(), b"one".as_slice())));
        assert_eq!(opened.at(second), Some((b"{}".as_slice(), [0, 255, 7].as_slice())));
    }

    /// Half a frame still gives what stands in front.
    #[test]
    fn a_torn_pack_gives_its_beginning() {
        let namespace = Namespace::local();
        let mut filling = Filling::default();
        let noise = |seed: u8| -> Vec<u8> {
            let mut bytes = vec![0; 300_000];
            blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
            bytes
        };
        let (first, second) = (noise(1), noise(2));
        let first_place = filling.add(&About::default(), &first).unwrap();
        let second_place = filling.add(&About::default(), &second).unwrap();
        let (mut closed, length) = filling.close(&Seal::Open, &namespace).unwrap();
        closed.truncate(closed.len() - 1000);
        let opened = Opened::new(closed, length, &Seal::Open, &namespace).unwrap();
        assert!(opened.at(first_place).is_some_and(|(_, bytes)| bytes == first));
        assert!(opened.at(second_place).is_none());
    }

    #[test]
    fn nonsense_opens_to_nothing() {
        let opened = Opened::new(b"not a frame".to_vec(), 10, &Seal::Open, &Namespace::local()).unwrap();
        assert_eq!(opened.at(Place { start: 0, about: 0, length: 10 }), None);
        let far = Place { start: usize::MAX, about: usize::MAX, length: 1 };
        assert_eq!(opened.at(far), None);
    }
}
