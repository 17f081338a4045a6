//! Reading packs, which the originals, the index and repacking share.

use crate::error::Error;
use crate::postgres::database::TransactionSteps;
use crate::postgres::rows::TenantKey;
use crate::store::StoredPack;

/// A pack that was read.
pub(crate) type ReadPack = Option<(i64, usize, Vec<u8>)>;

/// Returns a pack; `last` is the one that was read last, because the next original is often in it too.
pub(crate) fn read_pack<'l>(
    steps: &TransactionSteps<'_>,
    tenant: TenantKey,
    id: Option<i64>,
    last: &'l mut ReadPack,
) -> Result<Option<StoredPack<'l>>, Error> {
    let Some(id) = id else { return Ok(None) };
    if last.as_ref().is_none_or(|(last, _, _)| *last != id) {
        let sql = "SELECT length, content FROM foldline.pack WHERE tenant = $1 AND id = $2";
        *last = match steps.query(sql, &[&tenant, &id])?.first() {
            Some(row) => Some((id, usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0), row.try_get(1)?)),
            None => None,
        };
    }
    Ok(last.as_ref().map(|(id, length, content)| StoredPack { id: *id, length: *length, content }))
}
