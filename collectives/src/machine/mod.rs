//! What is known of this machine: a cost model, measured some times and kept in a file for later, or as the environment says; and
//! what was measured of algorithms, if somebody did.

mod kept;
mod known;
mod unbound;

pub(crate) use known::{Known, Origin, Rail};
pub(crate) use unbound::unbound;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use kept::Measured;

use crate::cost::CostModel;
use crate::error::BootstrapError;
use crate::tune::{Case, Fastest, KeepError};
use crate::variable::variable;

/// The cost model of this machine, as QPAIR_COST_MODEL says; `measure` measures it. What was measured of algorithms counts where that
/// says nothing.
///
/// # Errors
/// [`BootstrapError::CostModel`] if that names a file that can not be read, or holds no model.
pub(crate) fn this_machine(
    variable: impl Fn(&'static str) -> Option<String>,
    measure: impl FnOnce() -> Known,
) -> Result<Known, BootstrapError> {
    match variable(MODEL).as_deref() {
        None | Some("") => Ok(kept_or_measured(kept::folder(&variable).as_deref(), measure)),
        Some("default") => Ok(Known::default()),
        Some("measure") => Ok(measure()),
        Some(path) => given(Path::new(path)),
    }
}

/// The cost model in a file that the user names.
fn given(path: &Path) -> Result<Known, BootstrapError> {
    kept::given(path).map_err(|reason| BootstrapError::CostModel { path: path.to_owned(), reason })
}

/// What this process found first.
fn kept_or_measured(folder: Option<&Path>, measure: impl FnOnce() -> Known) -> Known {
    static FOUND: OnceLock<Known> = OnceLock::new();
    FOUND.get_or_init(|| found(folder, measure)).clone()
}

fn found(folder: Option<&Path>, measure: impl FnOnce() -> Known) -> Known {
    let key = kept::Key::of_this_machine();
    let fastest =
        folder.map_or_else(Fastest::default, |folder| measured_before(&folder.join(key.file::<Fastest>()), &key));
    Known { fastest, ..model_found(folder, &key, measure) }
}

fn model_found(folder: Option<&Path>, key: &kept::Key, measure: impl FnOnce() -> Known) -> Known {
    let Some(file) = folder.map(|folder| folder.join(key.file::<Measured>())) else { return measure() };
    let before = kept::read::<Measured>(&file, key);
    if let Err(error) = &before {
        tracing::debug!(%error, path = %file.display(), "the cost model is measured anew");
    }
    let mut measured = before.unwrap_or_else(|_| Measured(Vec::new())).0;
    let kept = |model| Known { model, origin: Origin::Kept { path: file.display().to_string() }, ..Known::default() };
    // Others may have used the machine while it was measured: so it is again, later.
    let is_due = measured.len() < TIMES && kept::age(&file).is_some_and(|age| age >= APART);
    let before = CostModel::of_all(&measured);
    if let Some(model) = before.filter(|_| !is_due) {
        return kept(model);
    }
    let known = measure();
    if !matches!(known.origin, Origin::Measured { .. }) {
        return before.map_or(known, kept);
    }
    measured.push(known.model);
    let model = CostModel::of_all(&measured).unwrap_or(known.model);
    if let Err(error) = kept::write(&file, key, &Measured(measured)) {
        tracing::debug!(%error, path = %file.display(), "the cost model is not kept");
    }
    Known { model, ..known }
}

/// How often the cost model of a machine is measured: what [they come to together](CostModel::of_all) counts.
const TIMES: usize = 5;
/// How long after it was the last time.
const APART: Duration = Duration::from_secs(600);

/// What was measured of algorithms; nothing, if nobody did.
fn measured_before(file: &Path, key: &kept::Key) -> Fastest {
    kept::read(file, key).unwrap_or_else(|error| {
        if error.kind() != ErrorKind::NotFound {
            tracing::warn!(%error, path = %file.display(), "what was measured of algorithms is not used");
        }
        Fastest::default()
    })
}

/// Adds cases to what is kept in a folder; in which file.
fn keep(folder: Option<PathBuf>, cases: impl IntoIterator<Item = Case>) -> Result<PathBuf, KeepError> {
    let key = kept::Key::of_this_machine();
    let folder = folder.ok_or(KeepError::NoFolder)?;
    let path = folder.join(key.file::<Fastest>());
    // Others who keep something meanwhile come after.
    let _alone = kept::alone(&folder);
    let mut fastest = measured_before(&path, &key);
    cases.into_iter().for_each(|case| fastest.set(case));
    if !fastest.is_sound() {
        return Err(KeepError::Full { path });
    }
    match kept::write(&path, &key, &fastest) {
        Ok(()) => Ok(path),
        Err(source) => Err(KeepError::Write { path, source }),
    }
}

impl Fastest {
    /// Keeps cases for communicators of programs that start from now on and whose rank 0 is on this machine, unless QPAIR_COST_MODEL
    /// says otherwise; in which file.
    ///
    /// # Errors
    /// [`KeepError`].
    pub fn keep(cases: impl IntoIterator<Item = Case>) -> Result<PathBuf, KeepError> {
        keep(kept::folder(variable), cases)
    }
}

impl CostModel {
    /// Reads one from a file, as JSON; what is not in it is as in the default.
    ///
    /// # Errors
    /// [`BootstrapError::CostModel`] if the file holds none.
    pub fn from_file(path: &Path) -> Result<Self, BootstrapError> {
        Ok(given(path)?.model)
    }
}

const MODEL: &str = "QPAIR_COST_MODEL";

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::SystemTime;

    use super::*;
    use crate::algorithms::Algorithm;
    use crate::cost::Seats;
    use crate::plan::{Elements, Ranks, Spec};

    fn measured() -> Known {
        let model = CostModel { turn: 2e-6, ..CostModel::default() };
        Known { model, origin: Origin::Measured { took: Duration::from_millis(1) }, ..Known::default() }
    }

    #[test]
    fn the_environment_gives_a_model_or_says_where_it_is() {
        let of = |value: &str| this_machine(|name| (name == MODEL).then(|| value.to_owned()), measured);
        assert_eq!(of("default").unwrap(), Known::default());
        assert_eq!(of("measure").unwrap(), measured());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.json");
        let model = CostModel { turn: 1e-3, ..CostModel::default() };
        std::fs::write(&path, serde_json::to_string(&model).unwrap()).unwrap();
        let given = of(path.to_str().unwrap()).unwrap();
        assert_eq!((given.model, &given.origin), (model, &Origin::File { path: path.display().to_string() }));
        for (text, reason) in
            [("{", "no cost model"), (r#"{"turn": -1.0}"#, "turn is -1"), (r#"{"trun": 1.0}"#, "trun")]
        {
            std::fs::write(&path, text).unwrap();
            let error = of(path.to_str().unwrap()).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("QPAIR_COST_MODEL"), "{error}");
        }
        assert!(of("/nowhere/at/all").unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn what_was_measured_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("cache/qpair");
        assert_eq!(found(Some(&below), measured), measured());
        let again = found(Some(&below), Known::default);
        assert!(matches!(again.origin, Origin::Kept { .. }), "{again:?}");
        assert_eq!(again.model, measured().model);
        assert!(again.fastest.is_empty());
        // Without a folder, or one that can not be made, it is measured each time.
        std::fs::write(folder.path().join("file"), "").unwrap();
        for nowhere in [None, Some(folder.path().join("file/qpair"))] {
            assert_eq!(found(nowhere.as_deref(), measured), measured());
        }
    }

    #[test]
    fn what_is_measured_again_later_counts_with_what_was_before_a_few_times() {
        let folder = tempfile::tempdir().unwrap();
        let measured = |turn, speed| {
            let model = CostModel { turn, copy: speed, straight: speed, ..CostModel::default() };
            Known { model, ..measured() }
        };
        let path = folder.path().join(kept::Key::of_this_machine().file::<Measured>());
        let ago = |time| File::open(&path).unwrap().set_modified(SystemTime::now() - time).unwrap();
        found(Some(folder.path()), || measured(3e-6, 5e9));
        // Not at once, nor of a file from the future, nor where it can not be.
        ago(APART / 2);
        assert_eq!(found(Some(folder.path()), || panic!("it is not due")).model.turn, 3e-6);
        File::open(&path).unwrap().set_modified(SystemTime::now() + 2 * APART).unwrap();
        assert_eq!(found(Some(folder.path()), || panic!("it is not due")).model.turn, 3e-6);
        ago(APART);
        let same = found(Some(folder.path()), Known::default);
        assert!(matches!(same.origin, Origin::Kept { .. }) && same.model.turn == 3e-6, "{same:?}");
        // Of two the better, then the one in the middle: one that is far too good does not stay. Of what moves long ranges the
        // fastest.
        for (turn, speed, together) in [
            (2e-6, 4e9, (2e-6, 5e9, 5e9)),
            (4e-6, 6e9, (3e-6, 5e9, 6e9)),
            (1e-6, 1e9, (2e-6, 5e9, 6e9)),
            (3e-6, 9e9, (3e-6, 5e9, 9e9)),
        ] {
            ago(APART);
            let known = found(Some(folder.path()), || measured(turn, speed));
            assert_eq!((known.model.turn, known.model.copy, known.model.straight), together);
            assert!(matches!(known.origin, Origin::Measured { .. }), "{known:?}");
        }
        ago(1000 * APART);
        assert_eq!(found(Some(folder.path()), || panic!("it was often enough")).model.turn, 3e-6);
    }

    #[test]
    fn what_was_measured_of_algorithms_is_kept_and_added_to() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("cache/qpair");
        let spec = |elements| Spec::all_reduce(Ranks(8), Elements(elements), 4);
        let case = |elements, algorithm| {
            Case::of(&spec(elements), &Seats::default(), &CostModel::default(), algorithm).unwrap()
        };
        let path = keep(Some(below.clone()), [case(1, Algorithm::Ring), case(2, Algorithm::Ring)]).unwrap();
        assert_eq!(keep(Some(below.clone()), [case(1, Algorithm::Direct), case(4, Algorithm::Direct)]).unwrap(), path);
        let known = found(Some(&below), measured);
        let nearest = |size| known.fastest.nearest(&spec(size), &Seats::default(), &CostModel::default()).unwrap();
        let chosen = [1, 2, 4].map(|size| nearest(size).algorithm());
        assert_eq!((known.fastest.len(), chosen), (3, [Algorithm::Direct, Algorithm::Ring, Algorithm::Direct]));
        // What is no more than half there counts for nothing.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(found(Some(&below), measured).fastest.is_empty());
        // Nor is more kept than is read again.
        let many = (1..2000).map(|size| case(size, Algorithm::Ring));
        assert!(matches!(keep(Some(below.clone()), many), Err(KeepError::Full { .. })));
        for (nowhere, reason) in [(None, "XDG_CACHE_HOME"), (Some(path.join("below")), "Not a directory")] {
            let error = keep(nowhere, []).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
