//! Export and import: a tenant's data as a stream of JSON lines, compressed with zstd.
//!
//! The format is meant to outlive this program. The first line names the format, and each other line is an original or
//! a fact of the ledger:
//!
//! ```json
//! {"foldline_export":1}
//! {"original":{"handle":"7k3q..","tool":"read_file","arguments":"{..}","session":"s-1","message":7,
//!              "tokens":120,"kept_at":1763240000000,"carried_at":1763240000000,"text":".."}}
//! {"fact":{"session":"s-1","kind":"summary","fingerprint":"<base64>","payload":"<base64>","at":1763240000000}}
//! ```
//!
//! An original that is not UTF-8 has `base64` in place of `text`. Times are milliseconds since 1970. An imported line
//! needs only the text; a handle, if present, must match it. An export is never encrypted, even if the archive is: it
//! is for readers with access to the tenant's data.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use foldline::Handle;
use serde::{Deserialize, Serialize};

use crate::admin::verify::ByteProgress;
use crate::audit::AuditAction;
use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::originals::entry::UnfoldedOriginal;
use crate::originals::pack::{MAX_ORIGINAL_BYTES, OriginalDescription, PACK_BYTES};
use crate::originals::reader::{LastPack, open_original};
use crate::originals::write::{NewOriginal, StoreCounts};
use crate::sessions::ledger::LedgerFact;
use crate::store::{ArchiveScope, OriginalSelection};
use crate::tenant::TenantArchive;

/// The version of the format.
const FORMAT_VERSION: u64 = 1;

/// Originals that are exported or imported per batch.
const BATCH_ORIGINALS: usize = 256;

/// Maximum length of a line: every byte of the largest original, escaped.
const MAX_LINE_BYTES: u64 = 6 * MAX_ORIGINAL_BYTES as u64 + 64 * 1024;

/// Number of rejected lines that are reported with a reason.
const MAX_REPORTED_LINES: usize = 20;

/// The results of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportReport {
    /// Originals that were written.
    pub originals: u64,
    /// Facts that were written.
    pub facts: u64,
    /// Originals that are damaged on disk and were left out.
    pub damaged: u64,
}

/// The results of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportReport {
    /// Originals that are new.
    pub added: u64,
    /// Originals that were already stored.
    pub existing: u64,
    /// Facts that are new.
    pub facts: u64,
    /// Number of rejected lines.
    pub rejected: u64,
    /// The first rejections: line number and reason.
    pub rejections: Vec<(u64, String)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ExportLine {
    FoldlineExport(u64),
    Original(OriginalLine),
    Fact(FactLine),
}

#[derive(Serialize, Deserialize)]
struct OriginalLine {
    #[serde(default)]
    handle: Option<Handle>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(default)]
    message: u64,
    #[serde(default)]
    tokens: u64,
    #[serde(default)]
    kept_at: Option<i64>,
    #[serde(default)]
    carried_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct FactLine {
    session: String,
    kind: String,
    fingerprint: String,
    payload: String,
    at: i64,
}

impl TenantArchive {
    /// Writes all originals and facts of this tenant, oldest first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the output cannot be written; otherwise the error of the store. A damaged original is counted, and
    /// is not an error.
    pub fn export(&self, out: impl Write, mut progress: impl FnMut(ByteProgress)) -> Result<ExportReport, Error> {
        let failed = |error: std::io::Error| Error::new(ErrorKind::Io, format!("could not write the export: {error}"));
        self.audit(AuditAction::Export, |entry| entry)?;
        let mut out = zstd::stream::write::Encoder::new(out, 3).map_err(failed)?;
        let mut write = |line: &ExportLine| {
            serde_json::to_writer(&mut out, line).map_err(std::io::Error::from)?;
            out.write_all(b"\n")
        };
        write(&ExportLine::FoldlineExport(FORMAT_VERSION)).map_err(failed)?;
        let mut exported = ExportReport::default();
        let mut at = ByteProgress { done_bytes: 0, total_bytes: self.stats()?.bytes };
        let (mut after, mut last) = (0, LastPack::default());
        let scope = ArchiveScope::Namespace(self.namespace());
        loop {
            let before = after;
            let selection = OriginalSelection::After(after, BATCH_ORIGINALS);
            self.store_rows().read(scope, selection, &mut |_, row, pack| {
                after = row.id;
                at.done_bytes += row.slot.length as u64;
                match open_original(self.cipher(), row, pack, &mut last) {
                    Ok(unfolded) => {
                        write(&ExportLine::Original(OriginalLine::from(unfolded))).map_err(failed)?;
                        exported.originals += 1;
                    }
                    Err(error) if *error.kind() == ErrorKind::Damaged => exported.damaged += 1,
                    Err(error) => return Err(error),
                }
                Ok(ControlFlow::Continue(()))
            })?;
            if after == before {
                break;
            }
            progress(at);
        }
        for (session, fact) in self.all_facts()? {
            write(&ExportLine::Fact(FactLine::new(session, fact))).map_err(failed)?;
            exported.facts += 1;
        }
        out.finish().and_then(|mut out| out.flush()).map_err(failed)?;
        Ok(exported)
    }

    /// Reads an export, compressed or not. An invalid line is reported and skipped, for example an original whose bytes
    /// do not match its handle.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the input cannot be read; otherwise the error of the store.
    pub fn import(&self, from: impl Read, mut progress: impl FnMut(u64)) -> Result<ImportReport, Error> {
        let failed = |error: std::io::Error| Error::new(ErrorKind::Io, format!("could not read the export: {error}"));
        let mut from = BufReader::new(from);
        let is_compressed = from.fill_buf().map_err(failed)?.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
        let mut from: Box<dyn BufRead> = match is_compressed {
            true => Box::new(BufReader::new(zstd::stream::read::Decoder::with_buffer(from).map_err(failed)?)),
            false => Box::new(from),
        };
        let mut imported = ImportReport::default();
        let mut batch: Vec<(u64, Vec<u8>, OriginalLine)> = Vec::new();
        let (mut number, mut bytes, mut line) = (0, 0, Vec::new());
        loop {
            line.clear();
            number += 1;
            let read = from.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line).map_err(failed)?;
            if read == 0 {
                break;
            }
            let parsed = serde_json::from_slice(&line).map_err(|error| error.to_string());
            match (number, parsed) {
                (1, Ok(ExportLine::FoldlineExport(FORMAT_VERSION))) => {}
                (1, Ok(ExportLine::FoldlineExport(version))) => {
                    return Err(Error::new(
                        ErrorKind::InvalidInput,
                        format!(
                            "the export has format version {version}; this foldline reads version {FORMAT_VERSION}"
                        ),
                    ));
                }
                (1, _) => {
                    return Err(Error::new(
                        ErrorKind::InvalidInput,
                        "not a foldline export: the first line does not name the format",
                    ));
                }
                (_, Ok(ExportLine::FoldlineExport(_))) => imported.reject(number, "repeated header line".into()),
                (_, Ok(ExportLine::Original(mut original))) => match original.take_bytes() {
                    Ok(content) => {
                        bytes += content.len();
                        batch.push((number, content, original));
                    }
                    Err(why) => imported.reject(number, why),
                },
                (_, Ok(ExportLine::Fact(fact))) => match self.import_fact(fact) {
                    Ok(added) => imported.facts += u64::from(added),
                    Err(error) => imported.reject(number, error.to_string()),
                },
                (_, Err(why)) => imported.reject(number, why),
            }
            if bytes >= 16 * PACK_BYTES || batch.len() >= BATCH_ORIGINALS {
                let lines = std::mem::take(&mut batch);
                imported.add_counts(self.import_originals(&lines)?, &lines);
                bytes = 0;
                progress(imported.added + imported.existing);
            }
        }
        imported.add_counts(self.import_originals(&batch)?, &batch);
        self.request_sync().wait()?;
        Ok(imported)
    }

    fn import_originals(&self, lines: &[(u64, Vec<u8>, OriginalLine)]) -> Result<StoreCounts, Error> {
        let now = clock::now_millis();
        let incoming: Vec<NewOriginal<'_>> = lines
            .iter()
            .map(|(_, bytes, line)| NewOriginal {
                handle: Handle::for_content(bytes),
                hash: *blake3::hash(bytes).as_bytes(),
                bytes,
                description: OriginalDescription { tool: line.tool.clone(), arguments: line.arguments.clone() },
                session: line.session.as_deref(),
                message: line.message,
                tokens: line.tokens,
                kept_at: line.kept_at.unwrap_or(now),
                carried_at: line.carried_at.unwrap_or(now),
            })
            .collect();
        self.store_missing(&incoming)
    }

    fn import_fact(&self, line: FactLine) -> Result<bool, Error> {
        let bytes = |text: &str| {
            BASE64.decode(text).map_err(|error| Error::new(ErrorKind::InvalidInput, format!("not base64: {error}")))
        };
        let (fingerprint, payload) = (bytes(&line.fingerprint)?, bytes(&line.payload)?);
        let session = Some(line.session.as_str()).filter(|name| !name.is_empty());
        let fact = LedgerFact { kind: line.kind, fingerprint, payload, at: line.at };
        let (_, is_new) = self.insert_fact(session, fact)?;
        Ok(is_new)
    }
}

impl FactLine {
    fn new(session: Option<String>, fact: LedgerFact) -> Self {
        Self {
            session: session.unwrap_or_default(),
            kind: fact.kind,
            fingerprint: BASE64.encode(fact.fingerprint),
            payload: BASE64.encode(fact.payload),
            at: fact.at,
        }
    }
}

impl ImportReport {
    fn reject(&mut self, line: u64, why: String) {
        self.rejected += 1;
        if self.rejections.len() < MAX_REPORTED_LINES {
            self.rejections.push((line, why));
        }
    }

    fn add_counts(&mut self, counts: StoreCounts, lines: &[(u64, Vec<u8>, OriginalLine)]) {
        self.added += counts.added;
        self.existing += counts.existing;
        for refused in counts.refused {
            self.reject(lines[refused.index].0, refused.reason);
        }
    }
}

impl From<UnfoldedOriginal> for OriginalLine {
    fn from(UnfoldedOriginal { info, bytes }: UnfoldedOriginal) -> Self {
        let (text, base64) = match String::from_utf8(bytes) {
            Ok(text) => (Some(text), None),
            Err(error) => (None, Some(BASE64.encode(error.as_bytes()))),
        };
        Self {
            handle: Some(info.handle),
            tool: info.tool,
            arguments: info.arguments,
            session: info.session,
            message: info.message,
            tokens: info.tokens,
            kept_at: Some(info.kept_at),
            carried_at: Some(info.carried_at),
            text,
            base64,
        }
    }
}

impl OriginalLine {
    /// Takes the bytes of the original, and checks them against the handle.
    fn take_bytes(&mut self) -> Result<Vec<u8>, String> {
        let bytes = match (self.text.take(), self.base64.take()) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => BASE64.decode(text).map_err(|error| format!("not base64: {error}"))?,
            _ => return Err("an original needs either text or base64".into()),
        };
        if let Some(handle) = self.handle.filter(|handle| *handle != Handle::for_content(&bytes)) {
            return Err(format!("the bytes do not have the handle {handle}"));
        }
        if bytes.len() > MAX_ORIGINAL_BYTES {
            return Err(format!("larger than the limit of {MAX_ORIGINAL_BYTES} bytes"));
        }
        Ok(bytes)
    }
}
