//! Reading packs from rows and objects, which the originals, the index and repacking share.

use bytes::Bytes;

use crate::error::Error;
use crate::postgres::database::TransactionSteps;
use crate::postgres::rows::{ObjectName, TenantKey};
use crate::store::StoredPack;

/// A pack that was read.
pub(crate) type ReadPack = Option<(i64, usize, Bytes)>;

/// Returns a pack, or `None` if it is missing; `last` is the one that was read last, because the next original is often in it too.
pub(crate) fn read_pack<'l>(
    steps: &TransactionSteps<'_>,
    tenant: TenantKey,
    id: Option<i64>,
    last: &'l mut ReadPack,
) -> Result<Option<StoredPack<'l>>, Error> {
    let Some(id) = id else { return Ok(None) };
    if last.as_ref().is_none_or(|(last, _, _)| *last != id) {
        let sql = "SELECT length, content, object FROM foldline.pack WHERE tenant = $1 AND id = $2";
        *last = None;
        if let Some(row) = steps.query(sql, &[&tenant, &id])?.first() {
            let length = usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0);
            let content = match (row.try_get::<_, Option<Vec<u8>>>(1)?, row.try_get::<_, Option<String>>(2)?) {
                (Some(content), _) => Some(content.into()),
                (None, Some(name)) => steps.read_object(ObjectName { tenant, name })?,
                (None, None) => None,
            };
            *last = content.map(|content| (id, length, content));
        }
    }
    Ok(last.as_ref().map(|(id, length, content)| StoredPack { id: *id, length: *length, content }))
}
