//! What has a descriptor is a mio source.

/// Implements [`mio::event::Source`] for a type by its `AsRawFd`.
macro_rules! by_descriptor {
    ($type:ty) => {
        impl mio::event::Source for $type {
            fn register(
                &mut self,
                registry: &mio::Registry,
                token: mio::Token,
                interests: mio::Interest,
            ) -> std::io::Result<()> {
                mio::unix::SourceFd(&std::os::fd::AsRawFd::as_raw_fd(self)).register(registry, token, interests)
            }

            fn reregister(
                &mut self,
                registry: &mio::Registry,
                token: mio::Token,
                interests: mio::Interest,
            ) -> std::io::Result<()> {
                mio::unix::SourceFd(&std::os::fd::AsRawFd::as_raw_fd(self)).reregister(registry, token, interests)
            }

            fn deregister(&mut self, registry: &mio::Registry) -> std::io::Result<()> {
                mio::unix::SourceFd(&std::os::fd::AsRawFd::as_raw_fd(self)).deregister(registry)
            }
        }
    };
}
pub(crate) use by_descriptor;
