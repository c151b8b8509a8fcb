//! `qpair launch`, torchrun, and whoever sets the same variables by hand.

use super::{Launcher, Told, Variables};
use crate::bootstrap::meeting::Meeting;
use crate::bootstrap::place::is_loopback;
use crate::error::BootstrapError;

pub(super) const LAUNCHER: Launcher = Launcher {
    name: "`qpair launch`, torchrun",
    sign: "RANK and WORLD_SIZE",
    is_there: |variables| variables.has("RANK") || variables.has("WORLD_SIZE") && !variables.has_another_launcher(),
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
    let local_rank = variables.optional(&["LOCAL_RANK"], hint)?;
    let hint = "set it to the number of ranks on this host, as `qpair launch` and torchrun do";
    let local_size: Option<u32> = variables.optional(&["LOCAL_WORLD_SIZE"], hint)?;
    let host = variables.text("MASTER_ADDR", "set it to the host of rank 0, as `qpair launch` and torchrun do")?;
    let port = variables.port_in("MASTER_PORT")?;
    let agent_is_there = variables.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
    let port = if agent_is_there { port.checked_add(1).unwrap_or(FIRST_FREE) } else { port };
    // Who starts one process on each host tells none of what is local, and may name rank 0's host to that rank alone so
    // (Kubeflow's training operator, pkg/controller.v1/pytorch/master.go).
    let may_span_hosts = local_size.map_or(local_rank.is_none(), |local| local < size);
    let meeting = if may_span_hosts && is_loopback(&host) {
        Meeting::BesideLauncher { hosts: vec![host], port }
    } else {
        Meeting::At { host, port }
    };
    Ok(Told { rank, size, local_rank, meeting, job: None })
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
    fn a_rank_0_that_is_told_of_loopback_is_reached_from_other_hosts_where_there_may_be_some() {
        let everywhere = Meeting::BesideLauncher { hosts: vec!["localhost".into()], port: 29500 };
        let alone = parse(&[("LOCAL_RANK", None), ("RANK", Some("0"))]).unwrap();
        assert_eq!((alone.local_rank, alone.meeting), (None, everywhere.clone()));
        assert_eq!(parse(&[("LOCAL_WORLD_SIZE", Some("2"))]).unwrap().meeting, everywhere);
        assert_eq!(parse(&[("LOCAL_WORLD_SIZE", Some("4"))]).unwrap().meeting, at("localhost", 29500));
        let named = [("LOCAL_WORLD_SIZE", Some("2")), ("MASTER_ADDR", Some("node1"))];
        assert_eq!(parse(&named).unwrap().meeting, at("node1", 29500));
    }

    #[test]
    fn each_variable_that_is_wrong_is_named() {
        for name in ["LOCAL_RANK", "LOCAL_WORLD_SIZE"] {
            let wrong = parse(&[(name, Some("-1x"))]).unwrap_err();
            assert!(wrong.to_string().starts_with(&format!("{name} is `-1x`: set it to")), "{wrong}");
        }
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
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
