//! Where a pack is: in its row, or in an object that its row names.
//!
//! An object is written before its row is committed, and deleted after the row was deleted. A crash between the two
//! leaves an object that no row names, which the next compaction deletes. If the object store fails, a pack is stored in
//! its row, and the next compaction moves it.

use std::time::Instant;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::postgres::database::{Database, RowScope, WaitLimit};
use crate::postgres::rows::{ObjectName, TenantKey, to_sql_int};

/// Packs that are read at once to be moved into objects.
const MOVED_PACKS: i64 = 16;

/// Largest pack that is an object: an unfold, which waits a few seconds, must be able to read it. Few packs are larger.
const MAX_OBJECT_BYTES: u64 = 8_000_000;

/// The place of a pack.
#[derive(Clone, Debug)]
pub(crate) enum PackPlace {
    /// Its row.
    Row(Bytes),
    /// An object, and its size.
    Object(ObjectName, i64),
}

impl PackPlace {
    /// Returns the column `content`.
    pub(crate) fn content(&self) -> Option<&[u8]> {
        match self {
            PackPlace::Row(content) => Some(content),
            PackPlace::Object(..) => None,
        }
    }

    /// Returns the column `object`.
    pub(crate) fn object(&self) -> Option<&str> {
        match self {
            PackPlace::Row(_) => None,
            PackPlace::Object(object, _) => Some(&object.name),
        }
    }

    /// Returns the column `object_bytes`.
    pub(crate) fn object_bytes(&self) -> Option<i64> {
        match self {
            PackPlace::Row(_) => None,
            PackPlace::Object(_, bytes) => Some(*bytes),
        }
    }
}

impl Database {
    /// Decides where packs are stored, and writes the objects of those that are large enough.
    pub(crate) fn place_packs(
        &self,
        tenant: TenantKey,
        contents: Vec<Bytes>,
        limit: WaitLimit,
    ) -> Result<Vec<PackPlace>, Error> {
        let Some(objects) = self.objects() else { return Ok(contents.into_iter().map(PackPlace::Row).collect()) };
        let large: Vec<Bytes> = contents.iter().filter(|content| self.is_object_size(content.len())).cloned().collect();
        let mut names = Vec::new();
        if !large.is_empty() {
            // The other half is for the database.
            let deadline = Instant::now() + limit.duration() / 2;
            // A failure is visible in the health of the archive; the row takes the pack.
            names = objects.put(&self.object_folder()?, tenant, &large, deadline).unwrap_or_default();
        }
        let mut names = names.into_iter();
        let place = |content: Bytes| match self.is_object_size(content.len()) {
            true => match names.next() {
                Some(name) => PackPlace::Object(name, to_sql_int(content.len())),
                None => PackPlace::Row(content),
            },
            false => PackPlace::Row(content),
        };
        Ok(contents.into_iter().map(place).collect())
    }

    /// Decides where a pack is stored.
    pub(crate) fn place_pack(&self, tenant: TenantKey, content: Bytes, limit: WaitLimit) -> Result<PackPlace, Error> {
        let mut places = self.place_packs(tenant, vec![content], limit)?;
        places.pop().ok_or_else(|| Error::new(ErrorKind::Io, "a pack has no place"))
    }

    /// Returns true if a pack of this size is an object.
    pub(crate) fn is_object_size(&self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        self.objects().is_some_and(|objects| bytes >= objects.min_bytes() && bytes <= MAX_OBJECT_BYTES)
    }

    /// Deletes objects that were written and are not used, without waiting.
    pub(crate) fn discard_objects<'p>(&self, unused: impl Iterator<Item = &'p PackPlace>) {
        let name = |place: &PackPlace| match place {
            PackPlace::Object(name, _) => Some(name.clone()),
            PackPlace::Row(_) => None,
        };
        let names: Vec<ObjectName> = unused.filter_map(name).collect();
        if let (Some(objects), Ok(folder)) = (self.objects(), self.object_folder()) {
            objects.discard(&folder, &names);
        }
    }

    /// Returns the bytes of objects; `None` for those that do not exist.
    pub(crate) fn read_objects(&self, names: &[ObjectName], limit: WaitLimit) -> Result<Vec<Option<Bytes>>, Error> {
        match (names.is_empty(), self.objects()) {
            (true, _) => Ok(Vec::new()),
            (false, Some(objects)) => objects.get(&self.object_folder()?, names, Instant::now() + limit.duration()),
            (false, None) => Err(self.no_objects_error()),
        }
    }

    /// Moves packs that are large enough out of their rows, tenant by tenant: the key of a pack begins with the tenant.
    pub(crate) fn move_packs_to_objects(&self, tenants: &[TenantKey]) -> Result<(), Error> {
        let moves = |tenant: &TenantKey| self.move_packs_of(*tenant);
        match self.objects() {
            Some(_) => tenants.iter().try_for_each(moves),
            None => Ok(()),
        }
    }

    fn move_packs_of(&self, tenant: TenantKey) -> Result<(), Error> {
        let Some(objects) = self.objects() else { return Ok(()) };
        let select = "SELECT p.id, p.content FROM foldline.pack AS p
             WHERE p.tenant = $1 AND p.object IS NULL AND octet_length(p.content) BETWEEN $2::bigint AND $3::bigint AND p.id > $4
             ORDER BY p.id LIMIT $5";
        let update = "UPDATE foldline.pack AS p SET content = NULL, object = $3, object_bytes = $4
             WHERE p.tenant = $1 AND p.id = $2 AND p.object IS NULL RETURNING 1";
        let scope = RowScope::Tenant(tenant);
        let (min_bytes, max_bytes) = (to_sql_int(objects.min_bytes()), to_sql_int(MAX_OBJECT_BYTES));
        let mut last = 0;
        loop {
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                [&tenant, &min_bytes, &max_bytes, &last, &MOVED_PACKS];
            // Packs are found by their key, whatever the statistics.
            let limit = WaitLimit::Lookup(Instant::now() + WaitLimit::Maintenance.duration());
            let rows = self.query(scope, limit, select, &parameters)?;
            for row in &rows {
                let (id, content): (i64, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?);
                let place = self.place_pack(tenant, content.into(), WaitLimit::Maintenance)?;
                // The store does not answer. The next compaction tries again.
                let PackPlace::Object(name, bytes) = &place else { return Ok(()) };
                let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&tenant, &id, &name.name, bytes];
                if self.query(scope, WaitLimit::Maintenance, update, &parameters)?.is_empty() {
                    self.discard_objects(std::iter::once(&place));
                }
                last = id;
            }
            if rows.is_empty() {
                return Ok(());
            }
        }
    }

    /// Deletes old objects that no row names: a crash, or a failure of the object store, left them.
    pub(crate) fn delete_orphans(&self, scope: RowScope) -> Result<(), Error> {
        let Some(objects) = self.objects() else { return Ok(()) };
        let folder = self.object_folder()?;
        let deadline = Instant::now() + WaitLimit::Maintenance.duration();
        let tenant = match scope {
            RowScope::Everything => None,
            RowScope::Tenant(tenant) => Some(tenant),
        };
        let sql = "SELECT g.tenant, g.object FROM unnest($1::uuid[], $2::text[]) AS g (tenant, object)
             WHERE NOT EXISTS (SELECT 1 FROM foldline.pack AS p WHERE p.tenant = g.tenant AND p.object = g.object)";
        objects.visit_old(&folder, tenant, deadline, |old| {
            let tenants: Vec<TenantKey> = old.iter().map(|object| object.tenant).collect();
            let names: Vec<&str> = old.iter().map(|object| object.name.as_str()).collect();
            let rows = self.query(scope, WaitLimit::Maintenance, sql, &[&tenants, &names])?;
            let read = |row: &tokio_postgres::Row| Ok(ObjectName { tenant: row.try_get(0)?, name: row.try_get(1)? });
            objects.delete(&folder, &rows.iter().map(read).collect::<Result<Vec<_>, Error>>()?, deadline)
        })
    }
}
