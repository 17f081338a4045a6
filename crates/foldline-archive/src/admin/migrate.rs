//! Migration: copies an archive into another one, such as a file into PostgreSQL.
//!
//! Every original is hashed when it is read and read back from the target when it was written. What the target already
//! has is not written again, so a migration that was interrupted is continued by running it again. Legal holds are copied
//! before what they hold. The journal, which only informs people, is not copied.

use std::ops::ControlFlow;

use foldline::Handle;

use crate::admin::verify::ByteProgress;
use crate::archive::Archive;
use crate::audit::AuditAction;
use crate::error::{Error, ErrorKind};
use crate::originals::entry::UnfoldedOriginal;
use crate::originals::pack::OriginalDescription;
use crate::originals::reader::{LastPack, open_original};
use crate::originals::write::NewOriginal;
use crate::store::{ArchiveScope, OriginalSelection};
use crate::tenant::TenantArchive;

/// Originals of one batch, and the bytes after which a batch ends.
const BATCH_ORIGINALS: usize = 256;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// The results of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrateReport {
    /// Originals that were copied.
    pub added: u64,
    /// Originals that the target had already.
    pub existing: u64,
    /// Facts that were copied.
    pub facts: u64,
    /// Legal holds that were copied.
    pub holds: u64,
    /// Originals that are damaged in the source, which were not copied.
    pub damaged: u64,
    /// Originals that the target refused, or did not return as they are.
    pub failed: Vec<Handle>,
}

impl Archive {
    /// Copies all legal holds, originals and facts of all namespaces into another archive, which gets the identity of this
    /// one, so that credentials keep their namespaces.
    ///
    /// # Errors
    ///
    /// If an archive cannot be read or written, or the target has data of another archive.
    pub fn migrate_to(&self, target: &Archive, mut progress: impl FnMut(ByteProgress)) -> Result<MigrateReport, Error> {
        self.audit(AuditAction::Export)?;
        target.store_rows().adopt_identity(&self.store_rows().identity()?)?;
        let total_bytes = self.store_rows().original_bytes(ArchiveScope::Everything)?;
        let mut at = ByteProgress { done_bytes: 0, total_bytes };
        let mut report = MigrateReport::default();
        for namespace in self.store_rows().namespaces()? {
            let (from, to) = (self.tenant(&namespace), target.tenant(&namespace));
            report.holds += copy_holds(&from, &to)?;
            let mut after = 0;
            while let Some(batch) = OriginalBatch::read(&from, &mut after, &mut report)? {
                batch.copy(&to, &mut report)?;
                at.done_bytes += batch.bytes as u64;
                progress(at);
            }
            for (session, fact) in from.all_facts()? {
                let (_, is_new) = to.insert_fact(session.as_deref(), fact)?;
                report.facts += u64::from(is_new);
            }
        }
        Ok(report)
    }
}

/// Sets the holds that the target does not have, and returns their number.
fn copy_holds(from: &TenantArchive, to: &TenantArchive) -> Result<u64, Error> {
    let known: Vec<_> = to.holds()?.into_iter().map(|hold| hold.session).collect();
    let mut copied = 0;
    for hold in from.holds()?.into_iter().filter(|hold| !known.contains(&hold.session)) {
        to.insert_hold(hold)?;
        copied += 1;
    }
    Ok(copied)
}

/// Originals that are copied together.
struct OriginalBatch {
    originals: Vec<UnfoldedOriginal>,
    bytes: usize,
}

impl OriginalBatch {
    /// Reads the next originals; `None` after the last one.
    fn read(from: &TenantArchive, after: &mut i64, report: &mut MigrateReport) -> Result<Option<Self>, Error> {
        let (mut batch, mut last, before) = (Self { originals: Vec::new(), bytes: 0 }, LastPack::default(), *after);
        let scope = ArchiveScope::Namespace(from.namespace());
        let selection = OriginalSelection::After(*after, BATCH_ORIGINALS);
        from.store_rows().read(scope, selection, &mut |_, row, pack| {
            *after = row.id;
            match open_original(from.cipher(), row, pack, &mut last) {
                Ok(unfolded) => {
                    batch.bytes += unfolded.bytes.len();
                    batch.originals.push(unfolded);
                }
                Err(error) if *error.kind() == ErrorKind::Damaged => report.damaged += 1,
                Err(error) => return Err(error),
            }
            Ok(if batch.bytes < BATCH_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok((*after > before).then_some(batch))
    }

    /// Writes the originals, and reads them back.
    fn copy(&self, to: &TenantArchive, report: &mut MigrateReport) -> Result<(), Error> {
        let incoming: Vec<NewOriginal<'_>> = self.originals.iter().map(new_original).collect();
        let counts = to.store_missing(&incoming)?;
        to.request_sync().wait()?;
        report.added += counts.added;
        report.existing += counts.existing;
        for UnfoldedOriginal { info, bytes } in &self.originals {
            match to.read_original(info.handle.as_str()) {
                Ok(copied) if copied.bytes == *bytes => {}
                Err(error) if *error.kind() == ErrorKind::Unavailable => return Err(error),
                _ => report.failed.push(info.handle),
            }
        }
        Ok(())
    }
}

fn new_original(original: &UnfoldedOriginal) -> NewOriginal<'_> {
    let UnfoldedOriginal { info, bytes } = original;
    NewOriginal {
        handle: info.handle,
        hash: *blake3::hash(bytes).as_bytes(),
        bytes,
        description: OriginalDescription { tool: info.tool.clone(), arguments: info.arguments.clone() },
        session: info.session.as_deref(),
        message: info.message,
        tokens: info.tokens,
        kept_at: info.kept_at,
        carried_at: info.carried_at,
    }
}
