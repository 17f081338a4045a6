//! Token costs of documents: a PDF by its pages, text as text.

use memchr::memmem;

use crate::conversation::{FilePart, MediaSource};
use crate::tokens::images::{decode_head, strip_data_url};
use crate::tokens::text_meter::TextMeter;
use crate::tokens::{ImageSize, Tokens};

/// Tokens of the text of one page, in the middle of what providers state (A7.3).
const PAGE_TEXT_TOKENS: Tokens = 2_250;
/// Size of the page image that providers render next to its text.
const PAGE_IMAGE_SIZE: ImageSize = ImageSize { width: 1240, height: 1754 };
/// Bytes per page, for a PDF whose pages cannot be counted.
const BYTES_PER_PAGE: usize = 50_000;
/// Pages assumed for a document at a URL or under an id, whose size is unknown.
const ASSUMED_PAGES: Tokens = 4;
/// Maximum number of pages that any provider accepts, and upper limit for invalid files.
const MAX_PAGES: Tokens = 1_000;

/// Returns the tokens of a document.
pub(crate) fn file_tokens(file: &FilePart<'_>, meter: &TextMeter) -> Tokens {
    let name = file.name.as_deref().map_or(0, |name| meter.text(name));
    let content = match &file.source {
        MediaSource::Text(text) => meter.text(text),
        MediaSource::Base64(data) => base64_tokens(data, file.media_type.as_deref(), meter),
        MediaSource::Url(url) if url.starts_with("data:") => {
            let media_type = file.media_type.as_deref().or_else(|| url["data:".len()..].split([';', ',']).next());
            base64_tokens(strip_data_url(url), media_type, meter)
        }
        MediaSource::Url(_) | MediaSource::Id(_) | MediaSource::Unknown => ASSUMED_PAGES * page_tokens(meter),
    };
    name + content
}

fn base64_tokens(data: &str, media_type: Option<&str>, meter: &TextMeter) -> Tokens {
    let is_text =
        media_type.is_some_and(|kind| kind.starts_with("text/") || kind.ends_with("json") || kind.ends_with("xml"));
    if is_text {
        return meter.text(&String::from_utf8_lossy(&decode_head(data, data.len())));
    }
    count_pages(&decode_head(data, data.len())) * page_tokens(meter)
}

fn page_tokens(meter: &TextMeter) -> Tokens {
    PAGE_TEXT_TOKENS + meter.image_of_size(PAGE_IMAGE_SIZE, None)
}

/// Returns the number of pages of a PDF: its page objects, or an estimate by size. Newer files hide their page
/// objects in compressed streams.
fn count_pages(pdf: &[u8]) -> Tokens {
    let objects = memmem::find_iter(pdf, b"/Type").filter(|&at| is_page_type(&pdf[at + b"/Type".len()..])).count();
    let by_size = pdf.len().div_ceil(BYTES_PER_PAGE);
    let pages = if objects > 0 { objects } else { by_size };
    (pages as Tokens).clamp(1, MAX_PAGES)
}

/// Returns true if the name after `/Type` is `/Page` and not `/Pages`.
fn is_page_type(rest: &[u8]) -> bool {
    let name = rest.trim_ascii_start();
    name.strip_prefix(b"/Page").is_some_and(|after| !after.first().is_some_and(u8::is_ascii_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelTable;
    use crate::tokens::Meter;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    fn meter() -> Meter {
        Meter::for_model(ModelTable::builtin(), Some("claude-opus-4-6"))
    }

    fn base64(content: &[u8], media_type: &'static str) -> FilePart<'static> {
        FilePart {
            name: None,
            media_type: Some(media_type.into()),
            source: MediaSource::Base64(STANDARD.encode(content).into()),
        }
    }

    fn pdf(pages: usize) -> Vec<u8> {
        let mut text = String::from("%PDF-1.4\n1 0 obj << /Type /Pages /Count 3 >> endobj\n");
        for page in 0..pages {
            text += &format!("{} 0 obj <</Type/Page /Parent 1 0 R>> endobj\n", page + 2);
        }
        text.into_bytes()
    }

    #[test]
    fn pdf_cost_is_proportional_to_pages() {
        let meter = meter();
        let one = file_tokens(&base64(&pdf(1), "application/pdf"), meter.texts());
        let seven = file_tokens(&base64(&pdf(7), "application/pdf"), meter.texts());
        assert_eq!(seven, 7 * one);
        assert!((1_500..=6_000).contains(&one), "{one}");
    }

    /// Newer files compress their page objects; then the size is used.
    #[test]
    fn pdf_without_page_objects_is_estimated_by_size() {
        let packed = vec![0xA5; 10 * BYTES_PER_PAGE];
        assert_eq!(count_pages(&packed), 10);
        assert_eq!((count_pages(b""), count_pages(&vec![0; 200 * 1_000 * BYTES_PER_PAGE / 100])), (1, MAX_PAGES));
    }

    #[test]
    fn text_files_count_as_text() {
        let meter = meter();
        let text = "name,value\nfold,1\nunfold,2\n";
        let plain = FilePart { source: MediaSource::Text(text.into()), ..FilePart::default() };
        let url = format!("data:text/csv;base64,{}", STANDARD.encode(text));
        let by_url = FilePart { source: MediaSource::Url(url.into()), ..FilePart::default() };
        for file in [plain, by_url, base64(text.as_bytes(), "text/csv")] {
            assert_eq!(file_tokens(&file, meter.texts()), meter.text(text));
        }
    }

    #[test]
    fn unknown_document_is_not_free() {
        let file = FilePart { source: MediaSource::Id("file-1".into()), ..FilePart::default() };
        assert!(file_tokens(&file, meter().texts()) > 5_000);
    }
}
