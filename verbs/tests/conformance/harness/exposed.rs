//! Where the memory of the cases is: the processor's, or a GPU's where `QPAIR_TEST_MEMORY=gpu` says so. Of a GPU is then what
//! can be: buffers of requests, and regions.

use std::ops::Range;
use std::sync::OnceLock;

use qpair_verbs::{Access, Buffer, ExposedRegion, Gpu, GpuBuffer, GpuRegion, Local, ProtectionDomain, RegionSlice};
use qpair_verbs::{RemoteSlice, RevokeBlocked};

use super::machine::text;
use super::sample::{Origin, Piece};

/// Whether the cases run on memory of a GPU.
pub fn on_gpu() -> bool {
    static ON_GPU: OnceLock<bool> = OnceLock::new();
    *ON_GPU.get_or_init(|| std::env::var_os("QPAIR_TEST_MEMORY").is_some_and(|kind| kind == "gpu"))
}

/// A region by description.
pub enum Exposed {
    Host(ExposedRegion),
    Gpu(GpuRegion),
}

/// What a region was.
pub enum Revoked {
    Host(Buffer),
    Gpu(GpuBuffer),
}

impl Exposed {
    pub fn new(piece: Piece, pd: &ProtectionDomain, access: Access) -> Result<Self, String> {
        if piece.may_be_on_gpu() {
            return pd.register_gpu(piece.make_on_gpu()?, access).map(Exposed::Gpu).map_err(text);
        }
        piece.make(pd)?.expose(access).map(Exposed::Host).map_err(text)
    }

    pub fn len(&self) -> usize {
        match self {
            Exposed::Host(region) => region.len(),
            Exposed::Gpu(region) => region.len(),
        }
    }

    pub fn remote(&self, range: Range<usize>) -> RemoteSlice {
        match self {
            Exposed::Host(region) => region.remote(range),
            Exposed::Gpu(region) => region.remote(range),
        }
    }

    pub fn local(&self, range: Range<usize>) -> RegionSlice {
        match self {
            Exposed::Host(region) => region.local(range),
            Exposed::Gpu(region) => region.local(range),
        }
    }

    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), String> {
        match self {
            Exposed::Host(region) => region.read(offset, into),
            Exposed::Gpu(region) => region.read(offset, into),
        }
        .map_err(text)
    }

    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), String> {
        match self {
            Exposed::Host(region) => region.write(offset, from),
            Exposed::Gpu(region) => region.write(offset, from),
        }
        .map_err(text)
    }

    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, String> {
        match self {
            Exposed::Host(region) => region.fetch_add(offset, add),
            Exposed::Gpu(region) => region.fetch_add(offset, add),
        }
        .map_err(text)
    }

    /// Takes the memory back, or says why not.
    pub fn revoke(self) -> Result<Revoked, (Exposed, RevokeBlocked)> {
        match self {
            Exposed::Host(region) => {
                region.revoke().map(Revoked::Host).map_err(|failed| (Exposed::Host(failed.region), failed.why))
            }
            Exposed::Gpu(region) => region.revoke().map(Revoked::Gpu).map_err(|failed| {
                let region = failed.region.expect("the software device lets go of what it does not register");
                (Exposed::Gpu(region), failed.why)
            }),
        }
    }
}

impl Revoked {
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Revoked::Host(buffer) => buffer.to_vec(),
            Revoked::Gpu(buffer) => {
                let mut bytes = vec![0; buffer.len()];
                buffer.read(0, &mut bytes).expect("its own memory");
                bytes
            }
        }
    }
}

impl Piece {
    fn may_be_on_gpu(&self) -> bool {
        on_gpu() && self.origin == Origin::Alloc
    }

    fn make_on_gpu(&self) -> Result<GpuBuffer, String> {
        let mut buffer = Gpu::open(0).and_then(|gpu| gpu.alloc(self.len)).map_err(text)?;
        buffer.write(0, &self.fill.bytes(self.len)).map_err(text)?;
        Ok(buffer)
    }

    /// Memory for a request between queue pairs that are connected.
    pub fn make_local(self, pd: &ProtectionDomain) -> Result<Local, String> {
        if !self.may_be_on_gpu() {
            return Ok(self.make(pd)?.into());
        }
        let region = pd.register_gpu(self.make_on_gpu()?, Access::NONE).map_err(text)?;
        Ok(region.local(0..self.len).into())
    }
}
