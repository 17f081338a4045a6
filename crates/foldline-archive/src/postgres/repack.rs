//! Repacking: moves originals from small or mostly expired packs, or packs with a deleted original, into full ones.
//!
//! Repacking changes no original: each is read, verified against its hash and packed again, in one transaction with the
//! removal of the old pack. A pack with a damaged original is not moved.

use crate::error::Error;
use crate::namespace::Namespace;
use crate::originals::pack::{OriginalDescription, PackBuilder, PackSlot};
use crate::originals::reader::{LastPack, open_original};
use crate::postgres::database::{Database, RowScope, TransactionSteps, WaitLimit};
use crate::postgres::pack_objects::PackPlace;
use crate::postgres::packs::read_pack;
use crate::postgres::rows::{LocatedOriginal, ORIGINAL_COLUMNS, ObjectName, TenantKey, read_original, to_sql_int};

/// Packs with fewer bytes, before compression, are merged.
const SMALL_PACK_BYTES: i64 = 32 * 1024;

/// Packs that are moved in one transaction.
const BATCH_PACKS: usize = 16;

/// Repacks all packs of a scope that are small or mostly expired.
pub(crate) fn repack_all(database: &Database, scope: RowScope) -> Result<(), Error> {
    let condition = match scope {
        RowScope::Everything => "$1::uuid IS NULL",
        RowScope::Tenant(_) => "o.tenant = $1",
    };
    let sql = format!(
        "SELECT (SELECT n.name FROM foldline.namespace AS n WHERE n.tenant = p.tenant), p.id,
             2 * sum(o.description_len + o.length) < p.length
         FROM foldline.pack AS p
         JOIN foldline.original AS o ON o.tenant = p.tenant AND o.pack = p.id
         WHERE {condition}
         GROUP BY p.tenant, p.id, p.length
         HAVING 2 * sum(o.description_len + o.length) < p.length OR p.length < $2
         ORDER BY p.tenant, p.id"
    );
    let tenant = match scope {
        RowScope::Everything => None,
        RowScope::Tenant(tenant) => Some(tenant),
    };
    let rows = database.query(scope, WaitLimit::Maintenance, &sql, &[&tenant, &SMALL_PACK_BYTES])?;
    let mut wasteful: Vec<(Namespace, Vec<(i64, bool)>)> = Vec::new();
    for row in &rows {
        let (name, pack): (String, (i64, bool)) = (row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?));
        match wasteful.last_mut() {
            Some((namespace, packs)) if namespace.as_str() == name => packs.push(pack),
            _ => wasteful.push((Namespace::new(name)?, vec![pack])),
        }
    }
    for (namespace, packs) in wasteful {
        // A single small pack gains nothing.
        for group in packs.chunks(BATCH_PACKS).filter(|group| group.len() > 1 || group[0].1) {
            let packs: Vec<i64> = group.iter().map(|(pack, _)| *pack).collect();
            let tenant = RowScope::Tenant(TenantKey::new(&namespace));
            database.transact(tenant, WaitLimit::Maintenance, |steps| repack(database, steps, &namespace, &packs))?;
        }
    }
    Ok(())
}

/// Moves the remaining originals of these packs into as few new packs as possible, and deletes packs that are empty.
pub(crate) fn repack(
    database: &Database,
    steps: &TransactionSteps<'_>,
    namespace: &Namespace,
    packs: &[i64],
) -> Result<(), Error> {
    let (tenant, cipher) = (TenantKey::new(namespace), database.cipher().for_namespace(namespace));
    let select = format!(
        "SELECT {ORIGINAL_COLUMNS} FROM foldline.original AS o
         WHERE o.tenant = $1 AND o.pack = ANY($2) ORDER BY o.pack, o.start FOR UPDATE OF o"
    );
    let rows = steps.query(&select, &[&tenant, &packs])?;
    let located = rows.iter().map(read_original).collect::<Result<Vec<_>, _>>()?;
    let unindexed = "DELETE FROM foldline.unindexed WHERE tenant = $1 AND pack = ANY($2) RETURNING 1";
    let is_queued = !steps.query(unindexed, &[&tenant, &packs])?.is_empty();
    let mut writer =
        PackWriter { steps, tenant, is_queued, uses_rows: false, builder: PackBuilder::default(), moved: Vec::new() };
    let mut last = None;
    for group in located.chunk_by(|a, b| a.pack == b.pack) {
        let content = read_pack(steps, tenant, group[0].pack, &mut last)?;
        let mut opened = LastPack::default();
        let open = |LocatedOriginal { row, .. }: &LocatedOriginal| {
            let key = row.handle.key.clone();
            Ok::<_, Error>((key, open_original(&cipher, row.clone(), content, &mut opened)?))
        };
        let Ok(originals) = group.iter().map(open).collect::<Result<Vec<_>, _>>() else { continue };
        for (key, unfolded) in originals {
            if !writer.builder.has_room(unfolded.bytes.len()) {
                writer.finish_pack(&cipher)?;
            }
            let description = OriginalDescription { tool: unfolded.info.tool, arguments: unfolded.info.arguments };
            let slot = writer.builder.add(&description, &unfolded.bytes)?;
            writer.moved.push((key, slot));
        }
    }
    writer.finish_pack(&cipher)?;
    delete_empty_packs(steps, &vec![tenant; packs.len()], packs)
}

/// Writes packs of moved originals.
struct PackWriter<'w, 's> {
    steps: &'w TransactionSteps<'s>,
    tenant: TenantKey,
    /// True if originals of the old packs are not indexed yet.
    is_queued: bool,
    /// True once an object could not be written: the transaction, which has locks, does not wait again.
    uses_rows: bool,
    builder: PackBuilder,
    moved: Vec<(String, PackSlot)>,
}

impl PackWriter<'_, '_> {
    fn finish_pack(&mut self, cipher: &crate::encryption::TenantCipher) -> Result<(), Error> {
        let moved = std::mem::take(&mut self.moved);
        if moved.is_empty() {
            return Ok(());
        }
        let (content, length) = std::mem::take(&mut self.builder).finish(cipher)?;
        let database = self.steps.database();
        let place = match self.uses_rows {
            true => PackPlace::Row(content.into()),
            false => database.place_pack(self.tenant, content.into(), WaitLimit::Maintenance)?,
        };
        self.uses_rows |= place.content().is_some_and(|content| database.is_object_size(content.len()));
        let insert = "INSERT INTO foldline.pack (tenant, id, length, content, object, object_bytes)
             VALUES ($1, nextval('foldline.pack_id'), $2, $3, $4, $5) RETURNING id";
        let length = to_sql_int(length);
        let (content, object, bytes) = (place.content(), place.object(), place.object_bytes());
        let rows = self.steps.query(insert, &[&self.tenant, &length, &content, &object, &bytes])?;
        let pack: i64 = match rows.first() {
            Some(row) => row.try_get(0)?,
            None => return Err(Error::new(crate::ErrorKind::Io, "a pack was not stored")),
        };
        let keys: Vec<&str> = moved.iter().map(|(key, _)| key.as_str()).collect();
        let starts: Vec<i64> = moved.iter().map(|(_, slot)| to_sql_int(slot.start)).collect();
        let lengths: Vec<i64> = moved.iter().map(|(_, slot)| to_sql_int(slot.description_len)).collect();
        let update = "UPDATE foldline.original AS o SET pack = $2, start = g.start, description_len = g.description_len
             FROM unnest($3::text[], $4::bigint[], $5::bigint[]) AS g (handle, start, description_len)
             WHERE o.tenant = $1 AND o.handle = g.handle";
        self.steps.query(update, &[&self.tenant, &pack, &keys, &starts, &lengths])?;
        if self.is_queued {
            let sql = "INSERT INTO foldline.unindexed (tenant, pack) VALUES ($1, $2)";
            self.steps.query(sql, &[&self.tenant, &pack])?;
        }
        Ok(())
    }
}

/// Deletes those of these packs that have no originals left, and after the transaction their objects.
pub(crate) fn delete_empty_packs(
    steps: &TransactionSteps<'_>,
    tenants: &[TenantKey],
    packs: &[i64],
) -> Result<(), Error> {
    let sql = "WITH deleted AS (
             DELETE FROM foldline.pack AS p USING (SELECT DISTINCT * FROM unnest($1::uuid[], $2::bigint[])) AS g (tenant, id)
             WHERE p.tenant = g.tenant AND p.id = g.id AND NOT EXISTS (
                 SELECT 1 FROM foldline.original AS o WHERE o.tenant = p.tenant AND o.pack = p.id)
             RETURNING p.tenant, p.id, p.object
         ), dequeued AS (
             DELETE FROM foldline.unindexed AS u USING deleted AS d WHERE u.tenant = d.tenant AND u.pack = d.id)
         SELECT d.tenant, d.object FROM deleted AS d WHERE d.object IS NOT NULL";
    for row in steps.query(sql, &[&tenants, &packs])? {
        steps.add_deleted_object(ObjectName { tenant: row.try_get(0)?, name: row.try_get(1)? });
    }
    Ok(())
}
