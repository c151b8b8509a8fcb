//! What whoever starts a program asks for, instead of what the program or the ranks would choose.

use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::algorithms::Algorithm;
use crate::communicator::Communicator;
use crate::error::BootstrapError;
use crate::plan::{Collective, Plan};
use crate::regular;

/// Algorithms and plans that the environment names.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    /// The algorithm for a collective, or for all that it does. Later ones count.
    algorithms: Vec<(Option<Collective>, Algorithm)>,
    plans: Vec<(PathBuf, Plan)>,
}

impl Overrides {
    /// Reads QPAIR_ALGORITHM and QPAIR_PLANS.
    ///
    /// # Errors
    /// [`BootstrapError::Value`], [`BootstrapError::PlanFile`].
    pub(super) fn read(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, BootstrapError> {
        let algorithms = match variable(ALGORITHM) {
            Some(text) => text.split(',').map(|part| wish(part, &text)).collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        let files = variable(PLANS).unwrap_or_default();
        let files = std::env::split_paths(&files).filter(|path| !path.as_os_str().is_empty());
        let plans = files.map(|path| plan(&path).map(|plan| (path, plan))).collect::<Result<_, _>>()?;
        Ok(Self { algorithms, plans })
    }

    /// Lets a communicator use them, whatever the program asks for later.
    ///
    /// # Errors
    /// [`BootstrapError::PlanFile`] if a plan is for other ranks, or can not be proved.
    pub(super) fn apply(self, comm: &Communicator) -> Result<(), BootstrapError> {
        for (collective, algorithm) in self.algorithms {
            comm.fix_algorithm(collective, algorithm);
        }
        for (path, plan) in self.plans {
            comm.use_plan(plan, true).map_err(|error| BootstrapError::PlanFile { path, reason: error.to_string() })?;
        }
        Ok(())
    }
}

fn wish(part: &str, value: &str) -> Result<(Option<Collective>, Algorithm), BootstrapError> {
    let hint = "write `ring`, or `all-reduce=ring,broadcast=chain`, with algorithms that `qpair plan compare` lists";
    let wrong = || BootstrapError::Value { name: ALGORITHM, value: value.to_owned(), hint };
    let (collective, algorithm) = match part.split_once('=') {
        Some((collective, algorithm)) => {
            let found = Collective::ALL.into_iter().find(|known| known.name() == collective.trim());
            (Some(found.ok_or_else(wrong)?), algorithm)
        }
        None => (None, part),
    };
    let algorithm: Algorithm = algorithm.trim().parse().map_err(|_| wrong())?;
    let does = collective.is_none_or(|collective| algorithm.does(collective));
    if does && algorithm != Algorithm::Listed { Ok((collective, algorithm)) } else { Err(wrong()) }
}

fn plan(path: &Path) -> Result<Plan, BootstrapError> {
    let wrong = |what: String| {
        let reason = format!("{what}; name files that `qpair plan show --save` has written");
        BootstrapError::PlanFile { path: path.to_owned(), reason }
    };
    let mut text = String::new();
    let read = regular::open(path, OFlags::empty());
    let read = read.and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
    read.map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > MAX_FILE {
        return Err(wrong(format!("it is longer than {} MiB", MAX_FILE >> 20)));
    }
    serde_json::from_str(&text).map_err(|error| wrong(format!("it is no plan: {error}")))
}

const ALGORITHM: &str = "QPAIR_ALGORITHM";
const PLANS: &str = "QPAIR_PLANS";

/// Of one file of a plan.
const MAX_FILE: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Recipe;
    use crate::plan::{Elements, Ranks, Spec};

    fn read(algorithm: &'static str) -> Result<Overrides, BootstrapError> {
        Overrides::read(|name| (name == ALGORITHM).then(|| algorithm.to_owned()))
    }

    #[test]
    fn algorithms_for_one_collective_or_all() {
        let overrides = read("direct, all-reduce = ring,broadcast=chain").unwrap();
        let expected = [
            (None, Algorithm::Direct),
            (Some(Collective::AllReduce), Algorithm::Ring),
            (Some(Collective::Broadcast { root: 0 }), Algorithm::Chain),
        ];
        assert_eq!(overrides.algorithms, expected);
        for wrong in ["", "rign", "all-reduce=flat", "all-reduce=", "allreduce=ring", "listed", "ring;chain"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.starts_with(&format!("QPAIR_ALGORITHM is `{wrong}`: write `ring`, or")), "{error}");
        }
    }

    #[test]
    fn what_the_environment_names_stays_whatever_the_program_asks_for() {
        let comm = Communicator::group(1).unwrap().remove(0);
        read("all-reduce=ring").unwrap().apply(&comm).unwrap();
        comm.set_algorithm(Algorithm::Direct);
        let mut vector = comm.buffer::<f32>(10).unwrap();
        comm.all_reduce(&mut vector, qpair_verbs::calc::ReduceOp::Sum).unwrap();
        comm.all_gather(&mut vector).unwrap();
        let explained = comm.explain().to_string();
        for part in ["all-reduce (sum) of 10 f32 by ring", "all-gather of 10 f32 by direct"] {
            assert!(explained.contains(part), "{explained}");
        }
    }

    #[test]
    fn plans_come_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let recipe = |ranks| Recipe::new(Spec::all_reduce(Ranks(ranks), Elements(7), 4), Algorithm::Chain).unwrap();
        let text = |ranks| serde_json::to_string(&recipe(ranks).plan()).unwrap();
        std::fs::write(path("one"), text(1)).unwrap();
        std::fs::write(path("two"), text(2)).unwrap();
        std::fs::write(path("text"), "ring").unwrap();
        let read = |files: &[&str]| {
            let files = std::env::join_paths(files.iter().map(|name| path(name))).unwrap();
            Overrides::read(|name| (name == PLANS).then(|| files.to_str().unwrap().to_owned()))
        };
        let comm = Communicator::group(1).unwrap().remove(0);
        read(&["one"]).unwrap().apply(&comm).unwrap();
        comm.all_reduce(&mut comm.buffer::<f32>(7).unwrap(), qpair_verbs::calc::ReduceOp::Sum).unwrap();
        assert!(comm.explain().to_string().contains("by listed"), "{}", comm.explain());
        let error = read(&["one", "two"]).unwrap().apply(&comm).unwrap_err().to_string();
        assert!(error.contains("two") && error.contains("it is for 2 ranks, and there are 1"), "{error}");
        std::fs::create_dir(path("folder")).unwrap();
        for (name, reason) in [("text", "it is no plan"), ("none", "No such file"), ("folder", "no regular file")] {
            let error = read(&[name]).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("QPAIR_PLANS"), "{error}");
        }
    }
}
