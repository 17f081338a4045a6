//! The fold of one whole request body.

use foldline::tokens::Tokens;
use foldline::wire::{Format, Request};
use foldline::{Handle, Ledger, MemoryStore, OriginalStore, apply};

use crate::error::{EmbedError, EmbedErrorKind};
use crate::options::SessionOptions;

/// A folded request body.
#[derive(Debug)]
pub struct FoldedBody {
    /// The body to send.
    pub body: String,
    /// Its tokens.
    pub tokens: Tokens,
    /// Tokens of the body that was given.
    pub received_tokens: Tokens,
    /// Originals of the folds, if they are not in an archive.
    originals: MemoryStore,
    archive: Option<foldline_archive::TenantArchive>,
}

/// Folds a request body. The dialect is that of the options, or the one that the body has.
///
/// # Errors
///
/// If the body is not a request, it cannot fit, or an option is invalid.
pub fn fold_body(body: &str, options: &SessionOptions) -> Result<FoldedBody, EmbedError> {
    let format = match &options.format {
        Some(name) => crate::options::parse_format(name)?,
        None => Format::detect(body.as_bytes()).ok_or_else(|| EmbedError::invalid("not a request body"))?,
    };
    let request = Request::parse(format, body.as_bytes())?;
    let fold_options = options.fold_options(format, request.conversation().model.as_deref())?;
    let (archive, originals) = (options.archive.open()?, MemoryStore::default());
    let store: &dyn OriginalStore = match &archive {
        Some(archive) => archive,
        None => &originals,
    };
    let folded = apply(&request, &fold_options, &Ledger::default(), Some(store), &|_| ())?;
    let text = String::from_utf8(folded.body).map_err(|error| EmbedError::new(EmbedErrorKind::Failed, error))?;
    Ok(FoldedBody { body: text, tokens: folded.tokens, received_tokens: folded.raw_tokens, originals, archive })
}

impl FoldedBody {
    /// Returns the original of a handle.
    ///
    /// # Errors
    ///
    /// If there is no such original, or the archive cannot be read.
    pub fn unfold(&self, handle: &str) -> Result<Vec<u8>, EmbedError> {
        if let Some(archive) = &self.archive {
            return Ok(archive.unfold(handle)?.bytes);
        }
        let unknown = || {
            EmbedError::new(
                EmbedErrorKind::UnknownHandle,
                format_args!("no fold of this body has the handle {handle:?}"),
            )
        };
        let handle: Handle = handle.parse().map_err(|_| unknown())?;
        self.originals.get(handle).map(|bytes| bytes.to_vec()).ok_or_else(unknown)
    }
}
