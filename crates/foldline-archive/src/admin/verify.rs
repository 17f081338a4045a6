//! Verification: reads and hashes every original again, and marks those that changed as damaged.

use std::ops::ControlFlow;

use foldline::Handle;

use crate::archive::Archive;
use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::originals::reader::OriginalReader;
use crate::store::{ArchiveScope, OriginalSelection, OriginalState};

/// Originals that are verified between two progress reports.
const BATCH_ORIGINALS: usize = 256;

/// Progress in bytes of originals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteProgress {
    /// Bytes processed so far.
    pub done_bytes: u64,
    /// Bytes in total.
    pub total_bytes: u64,
}

/// The results of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Originals that are intact.
    pub intact: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Originals that are damaged.
    pub damaged: Vec<DamagedOriginal>,
    /// Originals that were marked as damaged and are intact.
    pub recovered: u64,
    /// Errors of the database's integrity check; empty if there are none.
    pub structure_errors: Vec<String>,
}

/// An original whose bytes have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedOriginal {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its handle.
    pub handle: Handle,
    /// The reason.
    pub reason: String,
}

impl Archive {
    /// Reads and hashes every original. Damaged ones are reported and, if the archive is writable, marked; the rest
    /// remains available.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn verify(&self, progress: impl FnMut(ByteProgress)) -> Result<VerifyReport, Error> {
        self.verify_scope(ArchiveScope::Everything, progress)
    }

    /// Verifies like [`Archive::verify`], but only the originals of one namespace.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn verify_namespace(
        &self,
        namespace: &Namespace,
        progress: impl FnMut(ByteProgress),
    ) -> Result<VerifyReport, Error> {
        self.verify_scope(ArchiveScope::Namespace(namespace), progress)
    }

    fn verify_scope(
        &self,
        scope: ArchiveScope<'_>,
        mut progress: impl FnMut(ByteProgress),
    ) -> Result<VerifyReport, Error> {
        let store = self.store_rows();
        let mut report = VerifyReport { structure_errors: store.check_structure()?, ..VerifyReport::default() };
        let mut at = ByteProgress { done_bytes: 0, total_bytes: store.original_bytes(scope)? };
        let (mut last_id, mut reader) = (0, OriginalReader::new(self.cipher()));
        loop {
            let mut changes = Vec::new();
            let before = last_id;
            let selection = OriginalSelection::After(last_id, BATCH_ORIGINALS);
            store.read(scope, selection, &mut |namespace, mut row, pack| {
                let (id, length) = (row.id, row.slot.length as u64);
                let state = std::mem::replace(&mut row.state, OriginalState::Available);
                let handle = reader.handle(namespace, &row)?;
                match reader.open(namespace, row, pack) {
                    Ok(_) => {
                        report.intact += 1;
                        report.bytes += length;
                        if state == OriginalState::Damaged {
                            report.recovered += 1;
                            changes.push((id, OriginalState::Available));
                        }
                    }
                    Err(error) => {
                        let (namespace, reason) = (namespace.clone(), error.to_string());
                        report.damaged.push(DamagedOriginal { namespace, handle, reason });
                        changes.push((id, OriginalState::Damaged));
                    }
                }
                at.done_bytes += length;
                last_id = id;
                Ok(ControlFlow::Continue(()))
            })?;
            if last_id == before {
                break;
            }
            if !changes.is_empty() {
                match store.set_states(changes) {
                    Err(error) if *error.kind() == ErrorKind::ReadOnly => {}
                    marked => marked?,
                }
            }
            progress(at);
        }
        Ok(report)
    }
}
