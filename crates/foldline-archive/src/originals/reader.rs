//! Opening stored originals: every original is verified against its hash before it is returned.

use foldline::Handle;

use crate::encryption::{ArchiveCipher, TenantCipher};
use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::originals::entry::{OriginalInfo, UnfoldedOriginal};
use crate::originals::pack::{OpenPack, OriginalDescription};
use crate::store::{OriginalRow, OriginalState, StoredPack};

/// Opens the originals that a store returns.
#[derive(Debug)]
pub(crate) struct OriginalReader<'c> {
    cipher: &'c ArchiveCipher,
    namespace: Option<(Namespace, TenantCipher)>,
    last: LastPack,
}

/// The pack that was opened last: its other originals are often requested next.
#[derive(Debug, Default)]
pub(crate) struct LastPack(Option<(i64, OpenPack)>);

impl<'c> OriginalReader<'c> {
    pub(crate) fn new(cipher: &'c ArchiveCipher) -> Self {
        Self { cipher, namespace: None, last: LastPack::default() }
    }

    /// Returns the handle of an original of this namespace.
    pub(crate) fn handle(&mut self, namespace: &Namespace, row: &OriginalRow) -> Result<Handle, Error> {
        self.tenant_cipher(namespace).open_handle(row.handle.clone())
    }

    /// Returns the original.
    pub(crate) fn open(
        &mut self,
        namespace: &Namespace,
        row: OriginalRow,
        pack: Option<StoredPack<'_>>,
    ) -> Result<UnfoldedOriginal, Error> {
        self.tenant_cipher(namespace);
        let (_, cipher) = self.namespace.as_ref().expect("the cipher was derived above");
        open_original(cipher, row, pack, &mut self.last)
    }

    fn tenant_cipher(&mut self, namespace: &Namespace) -> &TenantCipher {
        if self.namespace.as_ref().is_none_or(|(known, _)| known != namespace) {
            // Pack ids are unique in a store, so the last pack needs no reset.
            self.namespace = Some((namespace.clone(), self.cipher.for_namespace(namespace)));
        }
        let (_, cipher) = self.namespace.as_ref().expect("the cipher was derived above");
        cipher
    }
}

/// Opens an original of the cipher's namespace and verifies its hash.
pub(crate) fn open_original(
    cipher: &TenantCipher,
    row: OriginalRow,
    pack: Option<StoredPack<'_>>,
    last: &mut LastPack,
) -> Result<UnfoldedOriginal, Error> {
    let handle = cipher.open_handle(row.handle)?;
    let damaged = |why: &str| {
        Error::new(
            ErrorKind::Damaged,
            format!("the original {handle} is damaged on disk ({why}); run `foldline archive verify`"),
        )
    };
    match row.state {
        OriginalState::Damaged => return Err(damaged("as an earlier reading found")),
        OriginalState::Expired => {
            return Err(Error::new(
                ErrorKind::Expired { at: row.expired_at.unwrap_or_default() },
                format!("the original {handle} was held, and was given up by retention"),
            ));
        }
        OriginalState::Available => {}
    }
    let pack = pack.ok_or_else(|| damaged("its pack is missing"))?;
    let opened = last.open(pack, cipher).map_err(|error| match error.kind() {
        ErrorKind::Damaged => damaged(&error.to_string()),
        _ => error,
    })?;
    let (description, bytes) = opened.get(row.slot).ok_or_else(|| damaged("its pack ends too early"))?;
    let hash = *blake3::hash(bytes).as_bytes();
    if cipher.content_hash(&hash) != row.hash {
        return Err(damaged("its hash is another"));
    }
    let description: OriginalDescription = serde_json::from_slice(description).unwrap_or_default();
    let info = OriginalInfo {
        handle,
        length: bytes.len() as u64,
        tokens: row.tokens,
        tool: description.tool,
        arguments: description.arguments,
        session: row.session.map(|name| cipher.open_session(name)).transpose()?,
        message: row.message,
        kept_at: row.kept_at,
        carried_at: row.carried_at,
    };
    Ok(UnfoldedOriginal { info, bytes: bytes.to_vec() })
}

impl LastPack {
    fn open(&mut self, pack: StoredPack<'_>, cipher: &TenantCipher) -> Result<&OpenPack, Error> {
        if self.0.as_ref().is_none_or(|(id, _)| *id != pack.id) {
            self.0 = None;
            self.0 = Some((pack.id, OpenPack::open(pack.content, pack.length, cipher)?));
        }
        let (_, opened) = self.0.as_ref().expect("the pack was opened above");
        Ok(opened)
    }
}
