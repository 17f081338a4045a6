//! Repacking: moves originals from small or partly removed packs into full ones.
//!
//! Storing a few short originals makes a small pack, which compresses badly and wastes most of its last page. A removed
//! original remains in its pack until the others are moved. Repacking changes no original: each is read, verified
//! against its hash and packed again, in one transaction with the removal of the old pack. A pack with a damaged
//! original is moved only if it contains a removed one, and then byte for byte.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use crate::encryption::TenantCipher;
use crate::error::Error;
use crate::namespace::Namespace;
use crate::originals::pack::{OpenPack, OriginalDescription, PACK_BYTES, PackBuilder, PackSlot};
use crate::originals::reader::{LastPack, open_original};
use crate::sqlite::readers::ReaderPool;
use crate::sqlite::rows::{LocatedRow, PackCache, find_scope, to_sql_int};
use crate::sqlite::work_progress::WorkProgress;
use crate::sqlite::writer::WriteQueue;
use crate::store::ArchiveScope;

/// Packs with fewer bytes, before compression, are merged. The index of small packs in the schema uses the same
/// number.
const SMALL_PACK_BYTES: usize = 32 * 1024;

/// Bytes of small packs that are merged at once: a few full packs, so that the commit stays short.
const MERGE_BATCH_BYTES: usize = 4 * PACK_BYTES;

/// Packs that are moved in one commit.
const PACKS_PER_COMMIT: usize = 16;

/// The packs of a scope to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepackGoal {
    /// Those that contain removed originals, also if others in them are damaged.
    Erase,
    /// Those that contain removed originals, and small ones.
    SaveSpace,
}

/// Repacks all packs of a scope that the goal selects.
pub(crate) fn repack_all(
    readers: &Arc<ReaderPool>,
    writer: &WriteQueue,
    scope: ArchiveScope<'_>,
    goal: RepackGoal,
) -> Result<(), Error> {
    let candidates = readers.read(|connection| find_wasteful_packs(connection, scope, goal))?;
    for RepackCandidates { namespace, packs } in candidates {
        // A few packs at a time, so that commits stay small. A single small pack gains nothing.
        let is_useful =
            |group: &&[(i64, RepackReason)]| group.len() > 1 || group[0].1 == RepackReason::HasRemovedOriginals;
        for group in packs.chunks(PACKS_PER_COMMIT).filter(is_useful) {
            let (readers, namespace) = (readers.clone(), namespace.clone());
            let group: Vec<i64> = group.iter().map(|(pack, _)| *pack).collect();
            writer.write_durably(move |connection| repack(connection, &readers, &namespace, &group, goal))?;
        }
    }
    Ok(())
}

/// Merges a group of small packs, once they fill a few full ones.
pub(crate) fn merge_small_packs(readers: &Arc<ReaderPool>, writer: &WriteQueue) -> Result<WorkProgress, Error> {
    let Some((namespace, packs)) = readers.read(find_small_packs)? else { return Ok(WorkProgress::Idle) };
    let readers = readers.clone();
    writer.write_durably(move |connection| {
        let moved = repack(connection, &readers, &namespace, &packs, RepackGoal::SaveSpace)?;
        // If damage prevents the move, retrying would change nothing.
        Ok(if moved > packs.len() / 2 { WorkProgress::Advanced } else { WorkProgress::Idle })
    })
}

/// Deletes a pack that has no originals left.
pub(crate) fn drop_empty_pack(connection: &Connection, pack: Option<i64>) -> Result<usize, Error> {
    let sql = "DELETE FROM pack WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM original WHERE pack = ?1)";
    Ok(connection.prepare_cached(sql)?.execute([pack])?)
}

/// Returns the oldest small packs of a namespace that has many of them.
fn find_small_packs(connection: &Connection) -> Result<Option<(Namespace, Vec<i64>)>, Error> {
    let many: Option<(i64, String)> = connection
        .prepare_cached(&format!(
            "SELECT n.id, n.name FROM pack AS p JOIN namespace AS n ON n.id = p.namespace
             WHERE p.length < {SMALL_PACK_BYTES} GROUP BY p.namespace HAVING sum(p.length) >= ?1 LIMIT 1"
        ))?
        .query_row([to_sql_int(MERGE_BATCH_BYTES)], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((namespace, name)) = many else { return Ok(None) };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT id, length FROM pack WHERE namespace = ?1 AND length < {SMALL_PACK_BYTES} ORDER BY id"
    ))?;
    let mut rows = statement.query([namespace])?;
    let (mut packs, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        packs.push(row.get(0)?);
        bytes += usize::try_from(row.get::<_, i64>(1)?).unwrap_or(0);
        if bytes >= MERGE_BATCH_BYTES {
            break;
        }
    }
    Ok(Some((Namespace::new(name)?, packs)))
}

/// Packs of one namespace that should be repacked.
struct RepackCandidates {
    namespace: Namespace,
    packs: Vec<(i64, RepackReason)>,
}

/// The reason to repack a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepackReason {
    /// It contains originals that expired or were deleted.
    HasRemovedOriginals,
    /// It is small and compresses better when merged.
    Small,
}

fn find_wasteful_packs(
    connection: &Connection,
    scope: ArchiveScope<'_>,
    goal: RepackGoal,
) -> Result<Vec<RepackCandidates>, Error> {
    let namespace = find_scope(connection, scope)?;
    let small = if goal == RepackGoal::SaveSpace { SMALL_PACK_BYTES } else { 0 };
    let mut statement = connection.prepare(
        "SELECT n.name, p.id, coalesce(sum(o.about + o.length), 0) < p.length
         FROM pack AS p LEFT JOIN original AS o ON o.pack = p.id JOIN namespace AS n ON n.id = p.namespace
         WHERE ?2 IS NULL OR p.namespace = ?2
         GROUP BY p.id HAVING coalesce(sum(o.about + o.length), 0) < p.length OR p.length < ?1
         ORDER BY p.namespace, p.id",
    )?;
    let mut rows = statement.query((to_sql_int(small), namespace))?;
    let mut wasteful: Vec<RepackCandidates> = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let reason = if row.get(2)? { RepackReason::HasRemovedOriginals } else { RepackReason::Small };
        match wasteful.last_mut() {
            Some(last) if last.namespace.as_str() == name => last.packs.push((row.get(1)?, reason)),
            _ => {
                wasteful.push(RepackCandidates { namespace: Namespace::new(name)?, packs: vec![(row.get(1)?, reason)] })
            }
        }
    }
    Ok(wasteful)
}

/// Moves the remaining originals of these packs into as few new packs as possible and returns the number of packs
/// removed. To save space, a pack with a damaged original is not moved; to erase, its bytes are moved as they are.
fn repack(
    connection: &Connection,
    readers: &ReaderPool,
    namespace: &Namespace,
    packs: &[i64],
    goal: RepackGoal,
) -> Result<usize, Error> {
    let cipher = readers.cipher().for_namespace(namespace);
    let mut builder = PackBuilder::default();
    let mut moved = Vec::new();
    let insert = |builder: PackBuilder, moved: &[(i64, PackSlot)]| {
        let (content, length) = builder.finish(&cipher)?;
        insert_pack(connection, namespace, &content, length, moved)
    };
    for &pack in packs {
        let select = format!("{} WHERE o.pack = ?1 ORDER BY o.start", LocatedRow::SELECT);
        let mut statement = connection.prepare_cached(&select)?;
        let rows = statement.query_map([pack], LocatedRow::from_row)?.collect::<Result<Vec<_>, _>>()?;
        let (mut content, mut last) = (PackCache::default(), LastPack::default());
        let open = |LocatedRow { row, pack, .. }: LocatedRow| {
            let id = row.id;
            let unfolded = open_original(&cipher, row, content.get(connection, pack)?, &mut last)?;
            Ok::<_, Error>((id, unfolded))
        };
        let Ok(originals) = rows.into_iter().map(open).collect::<Result<Vec<_>, _>>() else {
            if goal == RepackGoal::Erase {
                copy_damaged_pack(connection, &cipher, namespace, pack)?;
            }
            continue;
        };
        for (id, unfolded) in originals {
            if !builder.has_room(unfolded.bytes.len()) {
                insert(std::mem::take(&mut builder), &std::mem::take(&mut moved))?;
            }
            let description = OriginalDescription { tool: unfolded.info.tool, arguments: unfolded.info.arguments };
            moved.push((id, builder.add(&description, &unfolded.bytes)?));
        }
    }
    if !moved.is_empty() {
        insert(builder, &moved)?;
    }
    packs.iter().try_fold(0, |removed, pack| Ok(removed + drop_empty_pack(connection, Some(*pack))?))
}

/// Copies the bytes of the remaining originals of a pack, damaged or not, into a new pack. What cannot be read stays
/// damaged. A pack that cannot be decrypted discloses nothing, and remains.
fn copy_damaged_pack(
    connection: &Connection,
    cipher: &TenantCipher,
    namespace: &Namespace,
    pack: i64,
) -> Result<(), Error> {
    let mut stored = PackCache::default();
    let Some(content) = stored.get(connection, Some(pack))? else { return Ok(()) };
    let Ok(opened) = OpenPack::open(content.content, content.length, cipher) else { return Ok(()) };
    let select = format!("{} WHERE o.pack = ?1 ORDER BY o.start", LocatedRow::SELECT);
    let rows =
        connection.prepare_cached(&select)?.query_map([pack], LocatedRow::from_row)?.collect::<Result<Vec<_>, _>>()?;
    let mut builder = PackBuilder::default();
    let copy = |LocatedRow { row, .. }: &LocatedRow| {
        let (description, bytes) = opened.get(row.slot).unwrap_or_default();
        (row.id, builder.copy(description, bytes))
    };
    let moved: Vec<_> = rows.iter().map(copy).collect();
    let (content, length) = builder.finish(cipher)?;
    insert_pack(connection, namespace, &content, length, &moved)
}

fn insert_pack(
    connection: &Connection,
    namespace: &Namespace,
    content: &[u8],
    length: usize,
    moved: &[(i64, PackSlot)],
) -> Result<(), Error> {
    connection
        .prepare_cached(
            "INSERT INTO pack (namespace, length, content) SELECT id, ?2, ?3 FROM namespace WHERE name = ?1",
        )?
        .execute((namespace.as_str(), to_sql_int(length), content))?;
    let pack = connection.last_insert_rowid();
    let mut update =
        connection.prepare_cached("UPDATE original SET pack = ?2, start = ?3, about = ?4 WHERE id = ?1")?;
    for (id, slot) in moved {
        update.execute((id, pack, to_sql_int(slot.start), to_sql_int(slot.description_len)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encryption::ArchiveCipher;
    use crate::sqlite::database::OpenDatabase;

    /// The index is used only if the number in the schema equals the one here.
    #[test]
    fn small_pack_query_uses_its_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive.db");
        let database = OpenDatabase::open(&path, &ArchiveCipher::Plaintext, true).unwrap();
        let sql = format!(
            "EXPLAIN QUERY PLAN SELECT id FROM pack WHERE namespace = 1 AND length < {SMALL_PACK_BYTES} ORDER BY id"
        );
        let plan = |connection: &Connection| Ok(connection.query_row(&sql, (), |row| row.get::<_, String>(3))?);
        let plan = database.readers().read(plan).unwrap();
        assert!(plan.contains("pack_small"), "{plan}");
    }
}
