//! A tree of files and links in memory: what a manifest becomes, and what a capture collects.

use std::collections::BTreeMap;

use super::sysfs_limits as limits;

/// What stands at a path. Folders are where something lies below, and kept where nothing does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    File(String),
    /// With its target: from the root if it begins with `/`, else from the folder of the link.
    Link(String),
    Folder,
}

/// Files and links by path from the root, without a leading `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    entries: BTreeMap<String, Entry>,
}

impl Memory {
    pub(super) fn insert(&mut self, path: String, entry: Entry) {
        self.entries.insert(path, entry);
    }

    pub(super) fn insert_if_absent(&mut self, path: String, entry: Entry) {
        self.entries.entry(path).or_insert(entry);
    }

    /// Keeps a folder, unless something lies in it.
    pub(super) fn insert_folder(&mut self, path: &str) {
        if !self.exists(path) {
            self.entries.insert(path.to_owned(), Entry::Folder);
        }
    }

    pub(super) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// The text of a file, at a path that may lead over links.
    pub(super) fn read(&self, path: &str) -> Option<&str> {
        match self.entries.get(&self.resolve(path)?)? {
            Entry::File(text) => Some(text),
            Entry::Link(_) | Entry::Folder => None,
        }
    }

    /// Names in a folder, in order.
    pub(super) fn list(&self, path: &str) -> Vec<String> {
        let Some(folder) = self.resolve(path) else { return Vec::new() };
        let prefix = if folder.is_empty() { folder } else { folder + "/" };
        let mut names: Vec<String> = Vec::new();
        let mut from = prefix.clone();
        while names.len() < limits::ENTRIES {
            let next = self.entries.range(from..).next().and_then(|(path, _)| path.strip_prefix(&prefix));
            let Some(rest) = next else { break };
            let name = rest.split('/').next().unwrap_or(rest).to_owned();
            // Past the name itself, and past all below it; `0` is what comes after `/`.
            let below = rest.len() > name.len();
            from = format!("{prefix}{name}{}", if below { "0" } else { "\0" });
            if names.last() != Some(&name) {
                names.push(name);
            }
        }
        names.sort();
        names.dedup();
        names
    }

    /// The path without links, of what is there.
    pub(super) fn resolve(&self, path: &str) -> Option<String> {
        let mut hops = 0;
        let mut done = String::new();
        let mut rest: Vec<String> = components(path);
        while let Some(name) = rest.pop() {
            if name == ".." {
                done.truncate(done.rfind('/').unwrap_or(0));
                continue;
            }
            let next = if done.is_empty() { name } else { format!("{done}/{name}") };
            match self.entries.get(&next) {
                Some(Entry::Link(target)) => {
                    hops += 1;
                    if hops > limits::HOPS || rest.len() > limits::PATH {
                        return None;
                    }
                    if target.starts_with('/') {
                        done.clear();
                    }
                    rest.extend(components(target));
                }
                _ => done = next,
            }
        }
        self.exists(&done).then_some(done)
    }

    fn exists(&self, path: &str) -> bool {
        let below = format!("{path}/");
        path.is_empty()
            || self.entries.contains_key(path)
            || self.entries.range(below.clone()..).next().is_some_and(|(path, _)| path.starts_with(&below))
    }
}

/// The names of a path, the last one first.
fn components(path: &str) -> Vec<String> {
    path.split('/').rev().filter(|name| !name.is_empty() && *name != ".").map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        let mut memory = Memory::default();
        memory.insert("devices/a/x".into(), Entry::File("1".into()));
        memory.insert("devices/a/b/y".into(), Entry::File("2".into()));
        memory.insert("devices/a-b".into(), Entry::File("3".into()));
        memory.insert("bus/a".into(), Entry::Link("../devices/a".into()));
        memory.insert("bus/root".into(), Entry::Link("/devices".into()));
        memory.insert("bus/loop".into(), Entry::Link("loop".into()));
        memory.insert("bus/broken".into(), Entry::Link("/nowhere".into()));
        memory
    }

    #[test]
    fn links_are_followed_and_loops_end() {
        let memory = memory();
        assert_eq!(memory.resolve("bus/a/b").as_deref(), Some("devices/a/b"));
        assert_eq!(memory.read("bus/root/a/x"), Some("1"));
        assert_eq!(memory.resolve("bus/loop"), None);
        assert_eq!(memory.resolve("bus/broken"), None);
        assert_eq!(memory.resolve("../../devices/a").as_deref(), Some("devices/a"));
    }

    #[test]
    fn a_folder_lists_each_name_once() {
        let memory = memory();
        assert_eq!(memory.list("devices"), ["a", "a-b"]);
        assert_eq!(memory.list("bus/a"), ["b", "x"]);
        assert_eq!(memory.list(""), ["bus", "devices"]);
        assert_eq!(memory.list("nowhere"), [""; 0]);
    }
}
