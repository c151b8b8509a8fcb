//! `qpair launch`, torchrun, and whoever sets the same variables by hand.

use super::{Launcher, Told, Variables};
use crate::bootstrap::meeting::Meeting;
use crate::error::BootstrapError;

pub(super) const LAUNCHER: Launcher = Launcher {
    name: "`qpair launch`, torchrun",
    sign: "RANK and WORLD_SIZE",
    is_there: |variables| variables.has("RANK") || variables.has("WORLD_SIZE"),
    read,
};

/// torchrun's agent may keep a store of its own at MASTER_PORT, and says so by TORCHELASTIC_USE_AGENT_STORE=True
/// (torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py); the ranks meet at the next port then.
fn read(variables: &Variables) -> Result<Told, BootstrapError> {
    let hint = "set it to this process's number, from 0 to WORLD_SIZE - 1, as `qpair launch` and torchrun do";
    let rank = variables.number("RANK", hint)?;
    let hint = "set it to the number of ranks, at least 1, as `qpair launch` and torchrun do";
    let size = variables.number("WORLD_SIZE", hint)?;
    let hint = "set it to this process's number on its host, from 0 on, as `qpair launch` and torchrun do";
    let local_rank = Some(variables.number("LOCAL_RANK", hint)?);
    let host = variables.text("MASTER_ADDR", "set it to the host of rank 0, as `qpair launch` and torchrun do")?;
    let port = variables.port_in("MASTER_PORT")?;
    let agent_is_there = variables.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
    let port = if agent_is_there { port.checked_add(1).unwrap_or(FIRST_FREE) } else { port };
    Ok(Told { rank, size, local_rank, meeting: Meeting::At { host, port }, job: None })
}

/// The first port that needs no privilege: what follows the last one.
const FIRST_FREE: u16 = 1024;

#[cfg(test)]
mod tests {
    use super::super::tests::{at, told};
    use super::*;

    fn parse(change: &[(&'static str, Option<&str>)]) -> Result<Told, BootstrapError> {
        let mut variables = vec![
            ("RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", " 1 "),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", "29500"),
        ];
        for &(name, value) in change {
            variables.retain(|(known, _)| *known != name);
            variables.extend(value.map(|value| (name, value)));
        }
        told(&variables)
    }

    #[test]
    fn torchruns_variables_are_understood() {
        let meeting = at("localhost", 29500);
        assert_eq!(parse(&[]).unwrap(), Told { rank: 1, size: 4, local_rank: Some(1), meeting, job: None });
    }

    #[test]
    fn the_port_of_torchruns_own_store_is_left_to_it() {
        let with = |value, port| {
            parse(&[("TORCHELASTIC_USE_AGENT_STORE", Some(value)), ("MASTER_PORT", Some(port))]).unwrap().meeting
        };
        assert_eq!(with("True", "29500"), at("localhost", 29501));
        assert_eq!(with("False", "29500"), at("localhost", 29500));
        assert_eq!(with("True", "65535"), at("localhost", 1024));
    }

    #[test]
    fn each_variable_that_is_wrong_is_named() {
        for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
            let unset = parse(&[(name, None)]).unwrap_err();
            assert!(matches!(unset, BootstrapError::Unset { name: named, .. } if named == name), "{unset}");
            assert!(unset.to_string().contains("set it to"), "{unset}");
            let empty = parse(&[(name, Some(" "))]).unwrap_err();
            let is_named = match empty {
                BootstrapError::Value { name: named, .. } | BootstrapError::Unset { name: named, .. } => named == name,
                _ => false,
            };
            assert!(is_named);
            if name != "MASTER_ADDR" {
                let wrong = parse(&[(name, Some("-1x"))]).unwrap_err();
                assert!(wrong.to_string().starts_with(&format!("{name} is `-1x`: set it to")), "{wrong}");
            }
        }
        assert!(matches!(parse(&[("MASTER_PORT", Some("0"))]), Err(BootstrapError::Value { .. })));
        assert!(matches!(parse(&[("MASTER_PORT", Some("65536"))]), Err(BootstrapError::Value { .. })));
    }
}
