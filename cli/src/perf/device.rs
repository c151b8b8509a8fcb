//! The device that is measured.

use qpair::verbs::{Device, PortState};

use super::perftest::options::PerftestOptions;

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
}
