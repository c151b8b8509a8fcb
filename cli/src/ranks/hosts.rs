//! Which ranks run on which hosts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use thiserror::Error;

/// Hosts, each with the number of ranks that it takes, in the order in which they are filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<(String, u32)>);

/// The hosts make no sense.
#[derive(Debug, Error)]
pub enum HostsError {
    /// The file can not be read.
    #[error("the file of hosts {path} can not be read: {source}; give one with lines such as `node1 slots=4`")]
    Read {
        /// The file.
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A host or its number of ranks can not be understood.
    #[error("`{text}` is no host: write `NAME`, `NAME:RANKS`, or in a file `NAME slots=RANKS`")]
    Form {
        /// What was given.
        text: String,
    },
    /// Names that only Slurm writes out.
    #[error("`{text}` stands for several hosts in Slurm: write them out, as `scontrol show hostnames {text}` does")]
    Brackets {
        /// What was given.
        text: String,
    },
    /// They take more ranks than a job can have.
    #[error("the hosts take more than {MOST} ranks, which is more than a job can have: name fewer")]
    TooMany,
    /// There is none.
    #[error("there is no host: name one at least")]
    None,
    /// The hosts do not take as many ranks.
    #[error("the hosts take {slots} ranks and not {ranks}: name more hosts, or more ranks on each (`-H node1:8`)")]
    TooFew {
        /// How many they take.
        slots: u32,
        /// How many were asked for.
        ranks: u32,
    },
}

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The rank.
    pub rank: u32,
    /// Its number on its host.
    pub local_rank: u32,
    /// The number of ranks there.
    pub local_size: u32,
    /// The number of its host.
    pub node: u32,
    /// The host; `None` for this machine.
    pub host: Option<String>,
}

impl Hosts {
    /// `node1:4,node2`: hosts with numbers of ranks, 1 where none is given.
    ///
    /// # Errors
    /// [`HostsError`].
    pub fn parse(list: &str) -> Result<Self, HostsError> {
        Self::collect(split(list).map(|text| {
            let (name, slots) = numbered(text.trim());
            (text, name, slots)
        }))
    }

    /// A line for each host: `node1 slots=4` or `node1:4`. What follows a `#` is a comment.
    ///
    /// # Errors
    /// [`HostsError`].
    pub fn read(path: &Path) -> Result<Self, HostsError> {
        let text = fs::read_to_string(path);
        let text = text.map_err(|source| HostsError::Read { path: path.display().to_string(), source })?;
        Self::parse_file(&text)
    }

    fn parse_file(text: &str) -> Result<Self, HostsError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        Self::collect(lines.filter(|line| !line.is_empty()).map(|line| {
            let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let (name, number) = numbered(name);
            // Other words are options of other launchers, and none here.
            let slots = rest.split_whitespace().find_map(|word| word.strip_prefix("slots="));
            let is_odd = number.is_some() && slots.is_some() || rest.split_whitespace().any(|word| !word.contains('='));
            (line, name, if is_odd { Some("") } else { slots.or(number) })
        }))
    }

    fn collect<'a>(named: impl Iterator<Item = (&'a str, &'a str, Option<&'a str>)>) -> Result<Self, HostsError> {
        let mut hosts: Vec<(String, u32)> = Vec::new();
        let mut all = 0_u32;
        for (text, name, slots) in named {
            let name = &*unbracketed(name);
            if name.contains(['[', ']']) {
                return Err(HostsError::Brackets { text: text.trim().to_owned() });
            }
            // ssh would take it for an option.
            let is_name = !name.is_empty() && !name.starts_with('-') && !name.contains(|c: char| c.is_whitespace());
            let slots =
                slots.map_or(Some(1), |slots| slots.parse().ok().filter(|slots| (1..=MOST_ON_HOST).contains(slots)));
            let (true, Some(slots)) = (is_name, slots) else {
                return Err(HostsError::Form { text: text.trim().to_owned() });
            };
            let sum = all.checked_add(slots).filter(|sum| *sum <= MOST);
            all = sum.ok_or(HostsError::TooMany)?;
            match hosts.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += slots,
                None => hosts.push((name.to_owned(), slots)),
            }
        }
        if hosts.is_empty() { Err(HostsError::None) } else { Ok(Hosts(hosts)) }
    }

    /// Places so many ranks, or as many as there is room for. Hosts that are this machine are `None`, and
    /// one host, whatever they are called.
    ///
    /// # Errors
    /// [`HostsError::TooFew`].
    pub fn seat(&self, ranks: Option<u32>, is_here: impl Fn(&str) -> bool) -> Result<Vec<Seat>, HostsError> {
        let slots = self.0.iter().map(|(_, slots)| slots).sum();
        let ranks = ranks.unwrap_or(slots);
        if ranks > slots {
            return Err(HostsError::TooFew { slots, ranks });
        }
        let mut hosts: Vec<(Option<&String>, u32)> = Vec::new();
        for (name, slots) in &self.0 {
            let host = (!is_here(name)).then_some(name);
            match hosts.iter_mut().find(|(known, _)| host.is_none() && known.is_none()) {
                Some((_, sum)) => *sum += slots,
                None => hosts.push((host, *slots)),
            }
        }
        let all = (0_u32..).zip(hosts).flat_map(|(node, (host, slots))| (0..slots).map(move |at| (node, host, at)));
        let mut seats: Vec<_> = (0..ranks)
            .zip(all)
            .map(|(rank, (node, host, local_rank))| Seat { rank, local_rank, local_size: 0, node, host: host.cloned() })
            .collect();
        let mut sizes = BTreeMap::new();
        seats.iter().for_each(|seat| *sizes.entry(seat.node).or_default() += 1);
        seats.iter_mut().for_each(|seat| seat.local_size = sizes[&seat.node]);
        Ok(seats)
    }
}

impl Seat {
    /// All ranks on this machine.
    pub fn here(ranks: u32) -> Vec<Seat> {
        let seat = |rank| Seat { rank, local_rank: rank, local_size: ranks, node: 0, host: None };
        (0..ranks).map(seat).collect()
    }
}

/// Whether a host is this machine, of that name: its ranks need no ssh.
pub fn is_here(host: &str, own_name: &str) -> bool {
    let short = own_name.split('.').next().unwrap_or_default();
    ["localhost", "127.0.0.1", "::1"].contains(&host) || (!host.is_empty() && (host == own_name || host == short))
}

/// This machine's name.
pub fn own_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Ranks on a host, in one of its entries.
const MOST_ON_HOST: u32 = 4096;
/// Ranks of all hosts together: more than any job has, and few enough that a list of all of them takes little memory.
const MOST: u32 = 1 << 20;

/// A host, and the number of ranks behind a colon, if there is one. Addresses of IPv6 have colons, and stand in brackets then.
fn numbered(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((name, number)) if !name.contains(':') || name.ends_with(']') => (name, Some(number)),
        _ => (text, None),
    }
}

/// Parts between commas that stand in no bracket.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    list.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// A host as ssh takes it: without the brackets of an address of IPv6, behind a user's name or not.
fn unbracketed(name: &str) -> Cow<'_, str> {
    let (user, host) = name.rsplit_once('@').map_or((None, name), |(user, host)| (Some(user), host));
    match (user, host.strip_prefix('[').and_then(|host| host.strip_suffix(']'))) {
        (_, None) => name.into(),
        (None, Some(host)) => host.into(),
        (Some(user), Some(host)) => format!("{user}@{host}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(hosts: &[(&str, u32)]) -> Hosts {
        Hosts(hosts.iter().map(|(name, slots)| ((*name).to_owned(), *slots)).collect())
    }

    #[test]
    fn lists_and_files_name_hosts_and_their_ranks() {
        let parse = |list| Hosts::parse(list).expect("hosts");
        assert_eq!(parse("a:4, user@b ,a:2"), named(&[("a", 6), ("user@b", 1)]));
        assert_eq!(parse("fd00::2,[fd00::3]:4"), named(&[("fd00::2", 1), ("fd00::3", 4)]));
        assert_eq!(parse("b@[fd00::3]:4,b@fd00::3"), named(&[("b@fd00::3", 5)]));
        let file =
            "# two\nnode1 slots=4 # the first\n\n  node2\tslots=2 max_slots=3\nnode3\nnode4:2\nfd00::2\n[fd00::3]:4\n";
        let hosts = [("node1", 4), ("node2", 2), ("node3", 1), ("node4", 2), ("fd00::2", 1), ("fd00::3", 4)];
        assert_eq!(Hosts::parse_file(file).expect("hosts"), named(&hosts));
    }

    #[test]
    fn what_is_no_host_is_named() {
        for list in ["", "a,", "a:0", "a:x", "-oProxyCommand=x", "a b", "a:99999999"] {
            assert!(matches!(Hosts::parse(list), Err(HostsError::Form { .. })), "{list}");
        }
        for list in ["node[1,3]:4", "a,node[01-04]", "u@node[1]", "a[", "a]"] {
            let error = Hosts::parse(list).expect_err("Slurm's");
            let text = list.rsplit("a,").next().expect("one");
            assert!(matches!(&error, HostsError::Brackets { text: told } if told == text), "{error}");
            assert!(error.to_string().contains("scontrol show hostnames"), "{error}");
        }
        assert!(matches!(Hosts::parse_file("# none\n"), Err(HostsError::None)));
        for file in ["a slots=x", "a 4", "a:4 slots=4", "a:x"] {
            let words = Hosts::parse_file(file).expect_err("no host").to_string();
            assert!(words.contains(file) && words.contains("slots="), "{words}");
        }
    }

    #[test]
    fn more_ranks_than_can_be_are_refused() {
        let list = |entries| vec!["a:4096"; entries].join(",");
        assert_eq!(Hosts::parse(&list(256)).expect("hosts"), named(&[("a", MOST)]));
        assert!(matches!(Hosts::parse(&list(257)), Err(HostsError::TooMany)));
        // As many as overflow a number of 32 bits.
        let file = "a slots=4096\nb slots=4096\n".repeat(1 << 19);
        assert!(matches!(Hosts::parse_file(&file), Err(HostsError::TooMany)));
    }

    #[test]
    fn hosts_are_filled_in_order() {
        let hosts = named(&[("a", 2), ("here", 3)]);
        let seat = |rank, local_rank, local_size, node, host: Option<&str>| Seat {
            rank,
            local_rank,
            local_size,
            node,
            host: host.map(str::to_owned),
        };
        let expected = [seat(0, 0, 2, 0, Some("a")), seat(1, 1, 2, 0, Some("a")), seat(2, 0, 1, 1, None)];
        assert_eq!(hosts.seat(Some(3), |host| host == "here").expect("room"), expected);
        assert_eq!(hosts.seat(None, |_| false).expect("room").len(), 5);
        assert!(matches!(hosts.seat(Some(6), |_| false), Err(HostsError::TooFew { slots: 5, ranks: 6 })));
    }

    #[test]
    fn names_of_this_machine_are_one_host() {
        let hosts = named(&[("localhost", 1), ("a", 1), ("node1", 2)]);
        let seats = hosts.seat(None, |host| is_here(host, "node1")).expect("room");
        let numbers = |seat: &Seat| (seat.node, seat.local_rank, seat.local_size, seat.host.clone());
        let a = Some("a".to_owned());
        let expected = [(0, 0, 3, None), (0, 1, 3, None), (0, 2, 3, None), (1, 0, 1, a)];
        assert_eq!(seats.iter().map(numbers).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn this_machine_has_several_names() {
        for name in ["localhost", "127.0.0.1", "node1", "node1.example.org"] {
            assert!(is_here(name, "node1.example.org"), "{name}");
        }
        assert!(!is_here("node2", "node1") && !is_here("", ""));
    }
}
