//! Devices that are there and can not be used: what is said of them.

use qpair::verbs::OpenError;
use serde::Serialize;

use crate::doctor::system::RdmaDevice;

/// A device that can not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unusable {
    /// Its name.
    pub name: String,
    /// False.
    usable: bool,
    /// What stands in the way.
    why: String,
    /// What tells more.
    next: &'static str,
}

impl Unusable {
    fn new(name: &str, why: String) -> Self {
        Unusable { name: name.to_owned(), usable: false, why, next: "qpair doctor" }
    }

    /// A device that does not open.
    pub fn refused(name: &str, error: &OpenError) -> Self {
        Unusable::new(name, error.to_string())
    }

    /// Devices that the kernel has and that are not among the `known`; `library` is what is wrong with libibverbs.
    pub fn unlisted(kernel: &[RdmaDevice], known: &[String], library: Option<&str>) -> Vec<Self> {
        let why = match library {
            None => "libibverbs does not list it".to_owned(),
            Some(error) => format!("there is no libibverbs that lists it: {error}"),
        };
        let unknown = kernel.iter().filter(|device| !known.contains(&device.name));
        unknown.map(|device| Unusable::new(&device.name, why.clone())).collect()
    }
}

/// A line below the list for devices that are missing in it, if there are any.
pub fn remark(unlisted: &[Unusable]) -> Option<String> {
    let names: Vec<&str> = unlisted.iter().map(|device| device.name.as_str()).collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    (!names.is_empty())
        .then(|| format!("\n{} {verb} there, but can not be used; `qpair doctor` tells why.", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kernel() -> [RdmaDevice; 2] {
        ["rxe0", "rxe1"].map(|name| RdmaDevice { name: name.to_owned(), ..RdmaDevice::default() })
    }

    #[test]
    fn devices_that_libibverbs_does_not_find_are_told() {
        let kernel = kernel();
        let known = ["soft0".to_owned(), "rxe1".to_owned()];
        let unlisted = |known: &[String]| Unusable::unlisted(&kernel, known, None);
        let text = remark(&unlisted(&known)).expect("one is not known");
        assert_eq!(text, "\nrxe0 is there, but can not be used; `qpair doctor` tells why.");
        assert!(remark(&unlisted(&[])).expect("both").starts_with("\nrxe0, rxe1 are there"));
        assert_eq!(remark(&Unusable::unlisted(&kernel[1..], &known, None)), None);
    }

    #[test]
    fn objects_of_devices_that_can_not_be_used_say_why() {
        let [unlisted] = Unusable::unlisted(&kernel()[..1], &[], None).try_into().expect("one");
        let expected =
            json!({"name": "rxe0", "usable": false, "why": "libibverbs does not list it", "next": "qpair doctor"});
        assert_eq!(serde_json::to_value(&unlisted).expect("plain data"), expected);
        let [unlisted] = Unusable::unlisted(&kernel()[..1], &[], Some("no such file")).try_into().expect("one");
        assert_eq!(unlisted.why, "there is no libibverbs that lists it: no such file");
        let error = OpenError::Incomplete { name: "rxe0".to_owned(), what: "ibv_x" };
        let object = serde_json::to_value(Unusable::refused("rxe0", &error)).expect("plain data");
        assert_eq!((&object["usable"], &object["why"]), (&json!(false), &json!(error.to_string())));
    }
}
