//! QPAIR_NICS: which NICs the user lets be used.

use qpair_topology::{Nic, PciAddress, Selection};

use super::NearError;

/// What the user said of NICs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Nics {
    value: String,
    only: Vec<String>,
    exclude: Vec<String>,
}

impl Nics {
    /// Of the variable's value; empty is nothing said.
    pub(super) fn parse(value: &str) -> Result<Nics, NearError> {
        let syntax = || NearError::Syntax { value: value.to_owned() };
        let value = value.trim();
        if value.is_empty() {
            return Ok(Nics::default());
        }
        let (without, list) = value.strip_prefix('^').map_or((false, value), |list| (true, list));
        let names: Vec<String> = list.split(',').map(|name| name.trim().to_owned()).collect();
        if names.iter().any(|name| name.is_empty() || name.contains(['^', '=']) || name.contains(char::is_whitespace)) {
            return Err(syntax());
        }
        let (only, exclude) = if without { (Vec::new(), names) } else { (names, Vec::new()) };
        Ok(Nics { value: value.to_owned(), only, exclude })
    }

    pub(super) fn value(&self) -> &str {
        &self.value
    }

    /// True if the user named NICs to be used.
    pub(super) fn names_any(&self) -> bool {
        !self.only.is_empty()
    }

    /// True if the user named that NIC as one to be used.
    pub(super) fn names(&self, nic: &Nic) -> bool {
        is_among(&self.only, nic)
    }

    /// True if the user named it as one not to be used.
    pub(super) fn excludes(&self, nic: &Nic) -> bool {
        is_among(&self.exclude, nic)
    }

    /// The selection with what the user said.
    pub(super) fn limit<'a>(&self, selection: Selection<'a>) -> Selection<'a> {
        let selection = self.only.iter().fold(selection, Selection::only);
        self.exclude.iter().fold(selection, Selection::exclude)
    }
}

/// True if a list has the name or the address of a NIC.
fn is_among(list: &[String], nic: &Nic) -> bool {
    let is_address = |text: &str| text.parse().is_ok_and(|address: PciAddress| nic.address == Some(address));
    list.iter().any(|named| *named == nic.name || is_address(named))
}
