//! A build without object storage (cargo feature `objects`): there is no value of [`PackObjects`].

use std::convert::Infallible;
use std::time::Instant;

use bytes::Bytes;
use tokio::runtime::Handle;

use crate::error::{Error, ErrorKind};
use crate::object_storage::ObjectStorage;
use crate::postgres::rows::{ObjectName, TenantKey};

/// The objects of an archive's packs, of which this build has none.
#[derive(Debug)]
pub(crate) struct PackObjects(Infallible);

impl PackObjects {
    pub(crate) fn open(storage: &ObjectStorage, _: Handle) -> Result<Self, Error> {
        let location = storage.location();
        let message = format!("this build of foldline has no support for object stores such as {location}");
        Err(Error::new(ErrorKind::InvalidInput, message))
    }

    pub(crate) fn min_bytes(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn outage(&self) -> Option<Error> {
        match self.0 {}
    }

    pub(crate) fn is_paused(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn answers(&self, _: &[u8]) -> bool {
        match self.0 {}
    }

    pub(crate) fn put(&self, _: &[u8], _: TenantKey, _: &[Bytes], _: Instant) -> Result<Vec<ObjectName>, Error> {
        match self.0 {}
    }

    pub(crate) fn get(&self, _: &[u8], _: &[ObjectName], _: Instant) -> Result<Vec<Option<Bytes>>, Error> {
        match self.0 {}
    }

    pub(crate) fn discard(&self, _: &[u8], _: &[ObjectName]) {
        match self.0 {}
    }

    pub(crate) fn delete(&self, _: &[u8], _: &[ObjectName], _: Instant) -> Result<(), Error> {
        match self.0 {}
    }

    pub(crate) fn visit_old(
        &self,
        _: &[u8],
        _: Option<TenantKey>,
        _: Instant,
        _: impl FnMut(Vec<ObjectName>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self.0 {}
    }
}
