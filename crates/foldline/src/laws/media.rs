//! Pictures: how many, how large; and how large a request may be.

use super::{Law, RequestLocation, ViolationCollector};
use crate::conversation::{ImagePart, MediaSource, Part, PartId};
use crate::tokens::ImageSize;
use crate::wire::{Format, Request};

const BYTES_PER_MEGABYTE: usize = 1024 * 1024;
/// Most bytes of one picture as base64.
const MAX_IMAGE_BASE64_BYTES: usize = 10 * BYTES_PER_MEGABYTE;
/// Longest side of a picture.
const MAX_SIDE_PIXELS: u32 = 8_000;
/// Longest side where there are many.
const MAX_SIDE_PIXELS_MANY_IMAGES: u32 = 2_000;
/// More pictures than this are many.
const MANY_IMAGES_THRESHOLD: usize = 20;
/// Most messages of a request.
const MAX_MESSAGES: usize = 100_000;
/// How JPEG, PNG, GIF and WebP begin, in base64.
const IMAGE_BASE64_PREFIXES: [&str; 4] = ["/9j/", "iVBORw0KGg", "R0lGOD", "UklGR"];

pub(crate) fn check(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let largest =
        if findings.format() == Format::Anthropic { 32 * BYTES_PER_MEGABYTE } else { 512 * BYTES_PER_MEGABYTE };
    if request.body().len() > largest {
        let detail = format_args!("the body has {} bytes", request.body().len());
        findings.report(Law::BodySize, RequestLocation::Request, detail);
    }
    let messages = &request.conversation().messages;
    if messages.len() > MAX_MESSAGES {
        findings.report(Law::MessageCount, RequestLocation::Request, format_args!("{} messages", messages.len()));
    }
    let mut images: Vec<(PartId, &ImagePart<'_>)> = Vec::new();
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
    let most = findings.profile.max_images;
    if images.len() > most {
        let detail = format_args!("{} images, and {most} are allowed", images.len());
        findings.report(Law::ImageCount, RequestLocation::Request, detail);
    }
    if findings.format() == Format::Anthropic {
        let longest = if images.len() > MANY_IMAGES_THRESHOLD { MAX_SIDE_PIXELS_MANY_IMAGES } else { MAX_SIDE_PIXELS };
        for (place, image) in images {
            check_image(image, place, longest, findings);
        }
    }
}

fn check_image(image: &ImagePart<'_>, place: PartId, longest: u32, findings: &mut ViolationCollector<'_>) {
    let MediaSource::Base64(data) = &image.source else { return };
    if data.len() > MAX_IMAGE_BASE64_BYTES {
        findings.report_part(Law::ImageBytes, place, format_args!("{} bytes of base64", data.len()));
    }
    if !IMAGE_BASE64_PREFIXES.iter().any(|kind| data.starts_with(kind)) {
        findings.report_part(Law::ImageKind, place, "neither JPEG, PNG, GIF nor WebP");
    } else if let Some(size) = ImageSize::from_image(image).filter(|size| size.width.max(size.height) > longest) {
        let detail = format_args!("{} by {} pixels, and {longest} are allowed", size.width, size.height);
        findings.report_part(Law::ImagePixels, place, detail);
    }
}
