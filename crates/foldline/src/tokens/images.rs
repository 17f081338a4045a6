//! Token costs of images: by pixels and requested detail, never as base64 text.
//!
//! Only the header of an image is decoded, to read its size. An image of unknown size (a URL, an id, invalid data) is
//! counted as [`ImageSize::ASSUMED_SIZE`].

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::conversation::{ImagePart, MediaSource};
use crate::tokens::Tokens;

/// The rule by which a model counts images.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ImageRule {
    /// The same cost for every image.
    Fixed(Tokens),
    /// Claude: squares of `side` pixels, after scaling to at most `max_edge` pixels on the long edge and at most
    /// `max_tokens` tokens (A7.2).
    Squares {
        /// Side of a square in pixels.
        side: u32,
        /// Longest edge after scaling, in pixels.
        max_edge: u32,
        /// Maximum tokens after scaling.
        max_tokens: Tokens,
    },
    /// OpenAI up to GPT-5: a base and tiles of 512 pixels, after scaling into 2048 pixels and the short side to 768
    /// (C7.1).
    Tiles {
        /// Tokens of any image, and total of one in low detail.
        base: Tokens,
        /// Tokens per tile.
        tile: Tokens,
    },
    /// OpenAI after GPT-5: patches of 32 pixels, scaled down to a budget of patches, times a factor (C7.1).
    Patches {
        /// Maximum number of patches after scaling.
        budget: Tokens,
        /// Tokens per patch.
        factor: f64,
    },
}

/// The size of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSize {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

/// Base64 characters decoded first to find the size: enough for every format except JPEG, which may start with
/// metadata.
const HEADER_BASE64_CHARS: usize = 1024;
/// Base64 characters decoded if the first attempt finds no size.
const MAX_HEADER_BASE64_CHARS: usize = 512 * 1024;

impl ImageSize {
    /// Size assumed for an image of unknown size: about a screenshot as agents send them.
    pub const ASSUMED_SIZE: ImageSize = ImageSize { width: 1024, height: 1024 };

    /// Reads the size of an image from its header, if its bytes are in the request.
    pub fn from_image(image: &ImagePart<'_>) -> Option<ImageSize> {
        match &image.source {
            MediaSource::Base64(data) => Self::from_base64(data),
            MediaSource::Url(url) if url.starts_with("data:") => Self::from_base64(url),
            _ => None,
        }
    }

    /// Reads the size of an image in base64 or in a `data:` URL.
    pub(crate) fn from_base64(data: &str) -> Option<ImageSize> {
        let data = strip_data_url(data);
        let size = [HEADER_BASE64_CHARS, MAX_HEADER_BASE64_CHARS].into_iter().find_map(|length| {
            let bytes = decode_head(data, length);
            imagesize::blob_size(&bytes).ok()
        })?;
        let side = |pixels: usize| u32::try_from(pixels).ok().filter(|&pixels| pixels > 0);
        Some(ImageSize { width: side(size.width)?, height: side(size.height)? })
    }

    /// Scales the size down by a factor of at most 1; no side becomes zero.
    fn scaled(self, factor: f64) -> ImageSize {
        if factor >= 1.0 {
            return self;
        }
        let side = |pixels: u32| ((f64::from(pixels) * factor).floor() as u32).max(1);
        ImageSize { width: side(self.width), height: side(self.height) }
    }

    fn cell_count(self, side: u32) -> Tokens {
        Tokens::from(self.width.div_ceil(side)) * Tokens::from(self.height.div_ceil(side))
    }

    fn long_edge(self) -> f64 {
        f64::from(self.width.max(self.height))
    }

    fn short_edge(self) -> f64 {
        f64::from(self.width.min(self.height))
    }
}

/// Returns the payload of a `data:` URL; any other text unchanged.
pub(crate) fn strip_data_url(text: &str) -> &str {
    match text.strip_prefix("data:") {
        Some(rest) => rest.split_once(',').map_or("", |(_, payload)| payload),
        None => text,
    }
}

/// Decodes the first `length` characters of base64, as far as they are valid. Line breaks are skipped, since mail
/// tools insert them.
pub(crate) fn decode_head(data: &str, length: usize) -> Vec<u8> {
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
    /// Returns the tokens of an image.
    pub fn tokens(&self, image: &ImagePart<'_>) -> Tokens {
        self.tokens_for_size(ImageSize::from_image(image).unwrap_or(ImageSize::ASSUMED_SIZE), image.detail.as_deref())
    }

    /// Returns the tokens of an image of this size and detail.
    pub fn tokens_for_size(&self, size: ImageSize, detail: Option<&str>) -> Tokens {
        match *self {
            ImageRule::Fixed(tokens) => tokens,
            ImageRule::Squares { side, max_edge, max_tokens } => {
                let fitted = size.scaled(f64::from(max_edge) / size.long_edge());
                fit_cells(fitted, side, max_tokens).cell_count(side).min(max_tokens)
            }
            ImageRule::Tiles { base, .. } if detail == Some("low") => base,
            ImageRule::Tiles { base, tile } => {
                let inside = size.scaled(2048.0 / size.long_edge());
                base + tile * inside.scaled(768.0 / inside.short_edge()).cell_count(512)
            }
            ImageRule::Patches { budget, factor } => {
                // Low detail scales the image into 512 pixels; `original` has four times the budget where high detail
                // has more than the first generation's.
                let (size, budget) = match detail {
                    Some("low") => (size.scaled(512.0 / size.long_edge()), budget),
                    Some("original") if budget > 1536 => (size, budget.max(10_000)),
                    _ => (size, budget),
                };
                (patch_count(size, budget) as f64 * factor).ceil() as Tokens
            }
        }
    }

    /// Parses a cell of the model table.
    pub(crate) fn parse(cell: &str) -> Option<ImageRule> {
        let (kind, numbers) = cell.split_once(':')?;
        let numbers: Vec<&str> = numbers.split(':').collect();
        match (kind, numbers.as_slice()) {
            ("fixed", [tokens]) => Some(ImageRule::Fixed(tokens.parse().ok()?)),
            ("squares", [side, max_edge, max_tokens]) => Some(ImageRule::Squares {
                side: side.parse().ok().filter(|&side| side > 0)?,
                max_edge: max_edge.parse().ok().filter(|&edge| edge > 0)?,
                max_tokens: max_tokens.parse().ok()?,
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

/// Returns the number of patches of 32 pixels. An image above the budget is scaled to its area, and then slightly
/// further until its width or height is a whole number of patches.
fn patch_count(size: ImageSize, budget: Tokens) -> Tokens {
    if size.cell_count(32) <= budget {
        return size.cell_count(32);
    }
    let (width, height) = (f64::from(size.width) / 32.0, f64::from(size.height) / 32.0);
    let fit = (budget as f64 / (width * height)).sqrt();
    let whole = |side: f64| (side * fit).floor().max(1.0) / (side * fit);
    let scale = fit * whole(width).min(whole(height));
    let side = |side: f64| ((side * scale - 1e-6).ceil() as Tokens).max(1);
    (side(width) * side(height)).min(budget)
}

/// Scales the size down until it has at most about `max_cells` cells.
fn fit_cells(size: ImageSize, side: u32, max_cells: Tokens) -> ImageSize {
    let cells = size.cell_count(side);
    if cells <= max_cells { size } else { size.scaled((max_cells as f64 / cells as f64).sqrt()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    fn size(width: u32, height: u32) -> ImageSize {
        ImageSize { width, height }
    }

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend([8, 6, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([7; 4_000]);
        bytes
    }

    /// Returns a JPEG header whose metadata segments precede the frame that contains the size.
    fn jpeg(width: u16, height: u16, metadata: usize) -> Vec<u8> {
        let mut bytes = vec![0xFF, 0xD8];
        for _ in 0..metadata {
            bytes.extend([0xFF, 0xE2, 0xFF, 0xFF]);
            bytes.extend(vec![1; 0xFFFF - 2]);
        }
        bytes.extend([0xFF, 0xC0, 0, 17, 8]);
        bytes.extend(height.to_be_bytes());
        bytes.extend(width.to_be_bytes());
        bytes.extend([3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1]);
        bytes.extend([5; 4_000]);
        bytes
    }

    fn gif(width: u16, height: u16) -> Vec<u8> {
        let mut bytes = b"GIF89a".to_vec();
        bytes.extend(width.to_le_bytes());
        bytes.extend(height.to_le_bytes());
        bytes.extend([0; 40]);
        bytes
    }

    fn webp(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"RIFF\x64\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".to_vec();
        bytes.extend(&(width - 1).to_le_bytes()[..3]);
        bytes.extend(&(height - 1).to_le_bytes()[..3]);
        bytes.extend([0; 60]);
        bytes
    }

    #[test]
    fn size_is_read_from_the_header() {
        for bytes in [png(640, 480), jpeg(640, 480, 0), jpeg(640, 480, 3), gif(640, 480), webp(640, 480)] {
            let data = STANDARD.encode(&bytes);
            assert_eq!(ImageSize::from_base64(&data), Some(size(640, 480)));
            let url =
                ImagePart { source: MediaSource::Url(format!("data:image/png;base64,{data}").into()), detail: None };
            assert_eq!(ImageSize::from_image(&url), Some(size(640, 480)));
        }
        let wrapped = STANDARD
            .encode(png(640, 480))
            .as_bytes()
            .chunks(76)
            .map(|line| String::from_utf8_lossy(line).into_owned() + "\r\n")
            .collect::<String>();
        assert_eq!(ImageSize::from_base64(&wrapped), Some(size(640, 480)));
    }

    #[test]
    fn unreadable_image_has_the_assumed_size() {
        let rule = ImageRule::parse("squares:28:1568:1568").unwrap();
        for source in [
            MediaSource::Base64("not base64 at all, but long enough to look at".into()),
            MediaSource::Base64("".into()),
            MediaSource::Base64("iVBORw0KGgo".into()),
            MediaSource::Url("https://example.com/cat.png".into()),
            MediaSource::Url("data:image/png".into()),
            MediaSource::Id("file-1".into()),
            MediaSource::Unknown,
        ] {
            assert_eq!(
                rule.tokens(&ImagePart { source, detail: None }),
                rule.tokens_for_size(ImageSize::ASSUMED_SIZE, None)
            );
        }
    }

    /// A megabyte of image costs what its pixels cost, not what its base64 would.
    #[test]
    fn image_is_never_counted_as_text() {
        let mut bytes = png(800, 600);
        bytes.resize(1 << 20, 9);
        let image = ImagePart { source: MediaSource::Base64(STANDARD.encode(&bytes).into()), detail: None };
        assert_eq!(ImageRule::parse("squares:28:1568:1568").unwrap().tokens(&image), 29 * 22);
        assert_eq!(ImageRule::parse("fixed:512").unwrap().tokens(&image), 512);
    }

    /// Numbers from the providers' own examples.
    #[test]
    fn published_examples() {
        let tokens = |rule: &str, width, height, detail| {
            ImageRule::parse(rule).unwrap().tokens_for_size(size(width, height), detail)
        };
        let claude = "squares:28:1568:1568";
        assert_eq!(tokens(claude, 200, 200, None), 64);
        assert_eq!(tokens(claude, 1000, 1000, None), 1_296);
        assert_eq!(tokens(claude, 8000, 8000, None), 1_568);
        assert_eq!(tokens("squares:28:2576:4784", 8000, 8000, None), 4_784);
        let gpt4o = "tiles:85:170";
        assert_eq!(tokens(gpt4o, 1024, 1024, Some("high")), 765);
        assert_eq!(tokens(gpt4o, 2048, 4096, None), 1_105);
        assert_eq!(tokens(gpt4o, 4096, 8192, Some("low")), 85);
        let mini = "patches:1536:1";
        assert_eq!(tokens(mini, 1024, 1024, None), 1_024);
        assert_eq!(tokens(mini, 1800, 2400, None), 1_452);
        assert_eq!(tokens("patches:1536:1.62", 1024, 1024, None), 1_659);
        assert_eq!(tokens("patches:2500:1", 4000, 4000, Some("original")), 10_000);
    }

    proptest! {
        /// Any size: no panic, never above the rule's limit, never free.
        #[test]
        fn any_size_has_a_bounded_cost(width in 1..u32::MAX, height in 1..u32::MAX, small in 1..5_000_u32) {
            for size in [size(width, height), size(small, height), size(small, small), size(1, height)] {
                for (rule, most) in [
                    ("squares:28:1568:1568", 1_568), ("tiles:85:170", 85 + 170 * 16), ("patches:1536:2.46", 3_779),
                    ("patches:30000:1", 30_000),
                ] {
                    let tokens = ImageRule::parse(rule).unwrap().tokens_for_size(size, None);
                    prop_assert!((1..=most).contains(&tokens), "{tokens} for {size:?} by {rule}");
                }
            }
        }

        #[test]
        fn arbitrary_base64_does_not_panic(data in any::<String>()) {
            let _ = ImageSize::from_base64(&data);
        }
    }
}
