//! Limits on the number and size of images, and on the size of a request.

use crate::conversation::{ImagePart, MediaSource, Part, PartId};
use crate::laws::law::Law;
use crate::laws::violation::{RequestLocation, ViolationCollector};
use crate::tokens::ImageSize;
use crate::wire::Request;

/// Largest image, in bytes of base64.
const MAX_IMAGE_BASE64_BYTES: usize = 10 * 1024 * 1024;
/// Longest side of an image, in pixels.
const MAX_SIDE_PIXELS: u32 = 8_000;
/// Longest side of an image in a request with many images, in pixels.
const MAX_SIDE_PIXELS_MANY_IMAGES: u32 = 2_000;
/// Number of images above which a request has many images.
const MANY_IMAGES_THRESHOLD: usize = 20;
/// Maximum number of messages in a request.
const MAX_MESSAGES: usize = 100_000;
/// First characters of JPEG, PNG, GIF and WebP in base64.
const IMAGE_BASE64_PREFIXES: [&str; 4] = ["/9j/", "iVBORw0KGg", "R0lGOD", "UklGR"];

pub(crate) fn check(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    if request.body().len() > findings.rules().max_body_bytes {
        let detail = format_args!("the body has {} bytes", request.body().len());
        findings.report(Law::BodySize, RequestLocation::Request, detail);
    }
    let messages = &request.conversation().messages;
    if messages.len() > MAX_MESSAGES {
        findings.report(Law::MessageCount, RequestLocation::Request, format_args!("{} messages", messages.len()));
    }
    let mut images: Vec<(PartId, &ImagePart<'_>)> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        for (index, part) in message.parts.iter().enumerate() {
            let place = PartId::new(at, index);
            match part {
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
    let max_images = findings.profile.max_images;
    if images.len() > max_images {
        let detail = format_args!("{} images; at most {max_images} are allowed", images.len());
        findings.report(Law::ImageCount, RequestLocation::Request, detail);
    }
    if findings.has_any(&[Law::ImageBytes, Law::ImagePixels, Law::ImageKind]) {
        let max_side = if images.len() > MANY_IMAGES_THRESHOLD { MAX_SIDE_PIXELS_MANY_IMAGES } else { MAX_SIDE_PIXELS };
        for (place, image) in images {
            check_image(image, place, max_side, findings);
        }
    }
}

fn check_image(image: &ImagePart<'_>, place: PartId, max_side: u32, findings: &mut ViolationCollector<'_>) {
    let MediaSource::Base64(data) = &image.source else { return };
    if data.len() > MAX_IMAGE_BASE64_BYTES {
        findings.report_part(Law::ImageBytes, place, format_args!("{} bytes of base64", data.len()));
    }
    if !IMAGE_BASE64_PREFIXES.iter().any(|kind| data.starts_with(kind)) {
        findings.report_part(Law::ImageKind, place, "neither JPEG, PNG, GIF nor WebP");
    } else if let Some(size) = ImageSize::from_image(image).filter(|size| size.width.max(size.height) > max_side) {
        let detail = format_args!("{} by {} pixels; at most {max_side} per side are allowed", size.width, size.height);
        findings.report_part(Law::ImagePixels, place, detail);
    }
}
