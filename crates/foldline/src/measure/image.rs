//! What a picture costs: by its pixels and the wished-for detail, never as base64 text.
//!
//! Only the head of a picture is decoded, to learn its size. A picture whose size can not be learned
//! (an address, an id, garbage) is counted as [`ImageSize::ASSUMED`].

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::Tokens;
use crate::conversation::{Image, Source};

/// How a model counts pictures.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ImageRule {
    /// Every picture the same.
    Fixed(Tokens),
    /// Claude: squares of `side` pixels, after scaling to at most `edge` pixels on the long edge and
    /// at most `most` tokens (A7.2).
    Squares {
        /// Pixels of a square's side.
        side: u32,
        /// Longest edge after scaling.
        edge: u32,
        /// Most tokens after scaling.
        most: Tokens,
    },
    /// OpenAI to GPT-5: a base and tiles of 512 pixels, after scaling into 2048 pixels and the short
    /// side to 768 (C7.1).
    Tiles {
        /// Tokens of any picture, and all of one in low detail.
        base: Tokens,
        /// Tokens of a tile.
        tile: Tokens,
    },
    /// OpenAI since: patches of 32 pixels, scaled down to a budget of patches, times a factor (C7.1).
    Patches {
        /// Most patches after scaling.
        budget: Tokens,
        /// Tokens of a patch.
        factor: f64,
    },
}

/// Pixels of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSize {
    /// Pixels across.
    pub width: u32,
    /// Pixels down.
    pub height: u32,
}

/// How much base64 is decoded to find the size: enough for every format but JPEG, which may carry
/// metadata first.
const HEAD: usize = 1024;
/// How much is decoded when the head was not enough.
const LONG_HEAD: usize = 512 * 1024;

impl ImageSize {
    /// What a picture of unknown size is taken for: about a screenshot as agents send them.
    pub const ASSUMED: ImageSize = ImageSize { width: 1024, height: 1024 };

    /// The size of a picture, from its head, if its bytes are in the request.
    pub fn of(image: &Image<'_>) -> Option<ImageSize> {
        match &image.source {
            Source::Base64(data) => Self::of_base64(data),
            Source::Url(url) if url.starts_with("data:") => Self::of_base64(url),
            _ => None,
        }
    }

    /// The size of a picture in base64, maybe as a `data:` address.
    pub(super) fn of_base64(data: &str) -> Option<ImageSize> {
        let data = strip_data_url(data);
        let size = [HEAD, LONG_HEAD].into_iter().find_map(|length| {
            let bytes = decode_head(data, length);
            imagesize::blob_size(&bytes).ok()
        })?;
        let side = |pixels: usize| u32::try_from(pixels).ok().filter(|&pixels| pixels > 0);
        Some(ImageSize { width: side(size.width)?, height: side(size.height)? })
    }

    /// Scaled down by a factor of at most 1; no side vanishes.
    fn scaled(self, factor: f64) -> ImageSize {
        if factor >= 1.0 {
            return self;
        }
        let side = |pixels: u32| ((f64::from(pixels) * factor).floor() as u32).max(1);
        ImageSize { width: side(self.width), height: side(self.height) }
    }

    fn cells(self, side: u32) -> Tokens {
        Tokens::from(self.width.div_ceil(side)) * Tokens::from(self.height.div_ceil(side))
    }

    fn long(self) -> f64 {
        f64::from(self.width.max(self.height))
    }

    fn short(self) -> f64 {
        f64::from(self.width.min(self.height))
    }
}

/// The payload of a `data:` address; any other text as it is.
pub(super) fn strip_data_url(text: &str) -> &str {
    match text.strip_prefix("data:") {
        Some(rest) => rest.split_once(',').map_or("", |(_, payload)| payload),
        None => text,
    }
}

/// The first `length` characters of base64, decoded as far as they are base64. Line breaks are
/// skipped, as mail tools put them in.
pub(super) fn decode_head(data: &str, length: usize) -> Vec<u8> {
    let alphabet = data.bytes().take(length).filter(|byte| !byte.is_ascii_whitespace()).map(|byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => other,
    });
    let clean: Vec<u8> =
        alphabet.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/')).collect();
    STANDARD_NO_PAD.decode(&clean[..clean.len() / 4 * 4]).unwrap_or_default()
}

impl ImageRule {
    /// The tokens of a picture.
    pub fn tokens(&self, image: &Image<'_>) -> Tokens {
        self.of_size(ImageSize::of(image).unwrap_or(ImageSize::ASSUMED), image.detail.as_deref())
    }

    /// The tokens of a picture of this size, in this detail.
    pub fn of_size(&self, size: ImageSize, detail: Option<&str>) -> Tokens {
        match *self {
            ImageRule::Fixed(tokens) => tokens,
            ImageRule::Squares { side, edge, most } => {
                let fitted = size.scaled(f64::from(edge) / size.long());
                fit(fitted, side, most).cells(side).min(most)
            }
            ImageRule::Tiles { base, .. } if detail == Some("low") => base,
            ImageRule::Tiles { base, tile } => {
                let inside = size.scaled(2048.0 / size.long());
                base + tile * inside.scaled(768.0 / inside.short()).cells(512)
            }
            ImageRule::Patches { budget, factor } => {
                // Low detail is a picture scaled into 512 pixels; `original` has four times the
                // budget where high detail has more than the first generation's.
                let (size, budget) = match detail {
                    Some("low") => (size.scaled(512.0 / size.long()), budget),
                    Some("original") if budget > 1536 => (size, budget.max(10_000)),
                    _ => (size, budget),
                };
                let patches = fit(size, 32, budget).cells(32).min(budget);
                (patches as f64 * factor).ceil() as Tokens
            }
        }
    }

    /// Reads a cell of the model table.
    pub(super) fn parse(cell: &str) -> Option<ImageRule> {
        let (kind, numbers) = cell.split_once(':')?;
        let numbers: Vec<&str> = numbers.split(':').collect();
        match (kind, numbers.as_slice()) {
            ("fixed", [tokens]) => Some(ImageRule::Fixed(tokens.parse().ok()?)),
            ("squares", [side, edge, most]) => Some(ImageRule::Squares {
                side: side.parse().ok().filter(|&side| side > 0)?,
                edge: edge.parse().ok().filter(|&edge| edge > 0)?,
                most: most.parse().ok()?,
            }),
            ("tiles", [base, tile]) => Some(ImageRule::Tiles { base: base.parse().ok()?, tile: tile.parse().ok()? }),
            ("patches", [budget, factor]) => Some(ImageRule::Patches {
                budget: budget.parse().ok()?,
                factor: factor.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor >= 0.0)?,
            }),
            _ => None,
        }
    }
}

/// Scaled down until it has about at most so many cells.
fn fit(size: ImageSize, side: u32, most: Tokens) -> ImageSize {
    let cells = size.cells(side);
    if cells <= most { size } else { size.scaled((most as f64 / cells as f64).sqrt()) }
}
