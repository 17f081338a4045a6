//! Pictures: how many, how large; and how large a request may be.

use super::{Findings, Law, Place};
use crate::conversation::{Image, Part, PartId, Source};
use crate::measure::ImageSize;
use crate::wire::{Format, Request};

const MEGABYTE: usize = 1024 * 1024;
/// Most bytes of one picture as base64.
const LARGEST_IMAGE: usize = 10 * MEGABYTE;
/// Longest side of a picture.
const LONGEST_SIDE: u32 = 8_000;
/// Longest side where there are many.
const LONGEST_SIDE_OF_MANY: u32 = 2_000;
/// More pictures than this are many.
const MANY: usize = 20;
/// Most messages of a request.
const MOST_MESSAGES: usize = 100_000;
/// How JPEG, PNG, GIF and WebP begin, in base64.
const KINDS: [&str; 4] = ["/9j/", "iVBORw0KGg", "R0lGOD", "UklGR"];

pub(super) fn check(request: &Request<'_>, findings: &mut Findings<'_>) {
    let largest = if findings.format() == Format::Anthropic { 32 * MEGABYTE } else { 512 * MEGABYTE };
    if request.body().len() > largest {
        let detail = format_args!("the body has {} bytes", request.body().len());
        findings.broken(Law::BodySize, Place::Request, detail);
    }
    let messages = &request.conversation().messages;
    if messages.len() > MOST_MESSAGES {
        findings.broken(Law::MessageCount, Place::Request, format_args!("{} messages", messages.len()));
    }
    let mut images: Vec<(PartId, &Image<'_>)> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        for (part, it) in message.parts.iter().enumerate() {
            let place = PartId::new(at, part);
            match it {
                Part::Image(image) => images.push((place, image)),
                Part::ToolResult(result) => {
                    images.extend(result.content.iter().enumerate().filter_map(|(inner, piece)| match piece {
                        Part::Image(image) => Some((place.inner(inner), image)),
                        _ => None,
                    }));
                }
                _ => {}
            }
        }
    }
    let most = findings.profile.most_images;
    if images.len() > most {
        let detail = format_args!("{} images, and {most} are allowed", images.len());
        findings.broken(Law::ImageCount, Place::Request, detail);
    }
    if findings.format() == Format::Anthropic {
        let longest = if images.len() > MANY { LONGEST_SIDE_OF_MANY } else { LONGEST_SIDE };
        for (place, image) in images {
            picture(image, place, longest, findings);
        }
    }
}

fn picture(image: &Image<'_>, place: PartId, longest: u32, findings: &mut Findings<'_>) {
    let Source::Base64(data) = &image.source else { return };
    if data.len() > LARGEST_IMAGE {
        findings.broken_part(Law::ImageBytes, place, format_args!("{} bytes of base64", data.len()));
    }
    if !KINDS.iter().any(|kind| data.starts_with(kind)) {
        findings.broken_part(Law::ImageKind, place, "neither JPEG, PNG, GIF nor WebP");
    } else if let Some(size) = ImageSize::of(image).filter(|size| size.width.max(size.height) > longest) {
        let detail = format_args!("{} by {} pixels, and {longest} are allowed", size.width, size.height);
        findings.broken_part(Law::ImagePixels, place, detail);
    }
}
