//! The configuration space of a PCI bridge, as PCI Express Base Specification 6.0 lays it out: only
//! what says which kind of port it is and whether access control redirects.

/// What is known of a port. Without privilege only 64 bytes can be read, and then it is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortHints {
    /// The device/port type of section 7.5.3.2: 4 root port, 5 upstream, 6 downstream.
    pub(super) port_type: Option<u8>,
    /// The ACS control register of section 7.7.11.3; zero where there is no access control.
    pub(super) acs_control: Option<u16>,
}

impl PortHints {
    /// True if requests between devices below are sent up to the host: request redirect, bit 2.
    pub(super) fn redirects(self) -> Option<bool> {
        self.acs_control.map(|control| control & 4 != 0)
    }
}

/// Reads a configuration space, or what there is of it.
pub(super) fn hints(space: &[u8]) -> PortHints {
    PortHints { port_type: port_type(space), acs_control: acs_control(space) }
}

fn port_type(space: &[u8]) -> Option<u8> {
    const CAPABILITIES_LIST: u16 = 1 << 4;
    const PCI_EXPRESS: u8 = 0x10;
    if half(space, 6)? & CAPABILITIES_LIST == 0 {
        return None;
    }
    let mut at = usize::from(*space.get(0x34)? & !3);
    // 48 of them fit; a chain that is longer goes round.
    for _ in 0..48 {
        if at < 0x40 {
            return None;
        }
        if *space.get(at)? == PCI_EXPRESS {
            return Some((half(space, at + 2)? >> 4 & 15) as u8);
        }
        at = usize::from(*space.get(at + 1)? & !3);
    }
    None
}

fn acs_control(space: &[u8]) -> Option<u16> {
    const ACS: u32 = 0x000d;
    let mut at = 0x100;
    for _ in 0..(4096 - 256) / 8 {
        let header = u32::from(half(space, at)?) | u32::from(half(space, at + 2)?) << 16;
        if header & 0xffff == ACS && at >= 0x100 {
            return half(space, at + 6);
        }
        at = (header >> 20 & !3) as usize;
        if at < 0x100 {
            return Some(0);
        }
    }
    None
}

fn half(space: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*space.get(at)?, *space.get(at + 1)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Vec<u8> {
        let mut space = vec![0; 4096];
        space[6] = 0x10;
        space[0x34] = 0x40;
        space[0x40..0x44].copy_from_slice(&[0x01, 0x60, 0, 0]);
        space[0x60..0x64].copy_from_slice(&[0x10, 0, 0x62, 0]);
        space[0x100..0x104].copy_from_slice(&0x1500_0001_u32.to_le_bytes());
        space[0x150..0x154].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        space[0x156] = 0x1d;
        space
    }

    #[test]
    fn kind_of_port_and_access_control_are_found() {
        let hints = hints(&space());
        assert_eq!(hints, PortHints { port_type: Some(6), acs_control: Some(0x1d) });
        assert_eq!(hints.redirects(), Some(true));
    }

    #[test]
    fn what_can_not_be_read_is_not_known() {
        assert_eq!(hints(&space()[..64]), PortHints::default());
        assert_eq!(hints(&space()[..256]), PortHints { port_type: Some(6), acs_control: None });
        assert_eq!(hints(&[]), PortHints::default());
    }

    #[test]
    fn a_chain_that_goes_round_ends() {
        let mut space = space();
        space[0x41] = 0x40;
        space[0x150..0x154].copy_from_slice(&0x1500_0001_u32.to_le_bytes());
        assert_eq!(hints(&space), PortHints::default());
    }
}
