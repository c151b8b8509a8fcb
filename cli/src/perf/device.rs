//! The device that is measured.

use qpair::verbs::{Context, Device, PortState};

use super::error::PerfError;
use super::perftest::options::PerftestOptions;
use crate::size::Size;

/// The software device.
pub const SOFT: &str = Device::SOFTWARE;

/// The device to measure where none is named: the first RDMA device whose port that the options name is up, else the
/// software device.
pub fn default_device(options: &PerftestOptions) -> String {
    let state = |device: Device| {
        let context = device.open().ok()?;
        let port = context.port(options.port())?;
        Some((device.name().to_owned(), port.state))
    };
    first_up(Device::list().into_iter().filter_map(state))
}

fn first_up(mut devices: impl Iterator<Item = (String, PortState)>) -> String {
    let found = devices.find(|(name, state)| name != SOFT && *state == PortState::Active);
    found.map_or_else(|| SOFT.to_owned(), |(name, _)| name)
}

/// That the device takes messages of `size` bytes, as far as it tells how long they may be.
///
/// # Errors
/// [`PerfError::MessageSize`].
pub fn check_message(context: &Context, size: u64) -> Result<(), PerfError> {
    let limit = u64::from(context.attributes().max_message);
    if limit == 0 || size <= limit {
        return Ok(());
    }
    Err(PerfError::MessageSize { device: context.name().to_owned(), size: Size(size), limit: Size(limit) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_device_with_its_port_up_is_taken() {
        let first =
            |devices: &[(&str, PortState)]| first_up(devices.iter().map(|(name, state)| ((*name).to_owned(), *state)));
        let (up, down) = (PortState::Active, PortState::Down);
        assert_eq!(first(&[(SOFT, up), ("mlx5_0", down), ("mlx5_1", up), ("mlx5_2", up)]), "mlx5_1");
        assert_eq!(first(&[("mlx5_0", down), (SOFT, up)]), SOFT);
        let second = PerftestOptions { ib_port: Some(2), ..PerftestOptions::default() };
        assert_eq!((second.port(), PerftestOptions::default().port()), (2, 1));
    }

    #[test]
    fn messages_that_the_device_does_not_take_are_refused() {
        let context = Context::open(SOFT).expect("it is always there");
        check_message(&context, 1 << 31).expect("as long as it takes");
        let error = check_message(&context, 5 << 30).expect_err("longer");
        assert_eq!(error.to_string(), "soft0 takes no messages of 5G; give -s 2G or less");
        assert_eq!(error.exit_code(), 2);
    }
}
