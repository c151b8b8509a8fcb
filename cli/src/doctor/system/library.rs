//! libibverbs and its providers, as they lie on disk.

use std::fs;

use super::root::Root;

/// What there is of rdma-core's libraries.
#[derive(Clone, Debug, Default)]
pub struct Library {
    /// What loading it gave, once that was tried.
    pub loaded: Option<Result<LoadedLibrary, String>>,
    /// Each libibverbs.so.1, in the order of the folders searched.
    pub found: Vec<LibraryFile>,
    /// Provider names in /etc/libibverbs.d, without their path.
    pub configured: Vec<String>,
    /// Providers that can be loaded.
    pub providers: Vec<Provider>,
}

/// The libibverbs that this process gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedLibrary {
    /// Where it is.
    pub file: LibraryFile,
    /// Functions that it lacks.
    pub missing: Vec<&'static str>,
}

/// A libibverbs.so.1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryFile {
    /// The file that it is a link to.
    pub path: String,
    /// The release of rdma-core that it is of, where its name tells.
    pub rdma_core: Option<u32>,
    /// The private interface to providers that it has: it loads none of another.
    pub interface: Option<u32>,
}

/// A provider's library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Its name, as in /etc/libibverbs.d.
    pub name: String,
    /// The private interface to libibverbs that it was built for.
    pub interface: u32,
}

impl Library {
    pub(super) fn read(root: &Root) -> Self {
        let mut found: Vec<LibraryFile> = Vec::new();
        let mut providers = Vec::new();
        let mut seen = Vec::new();
        for folder in folders(root) {
            let Ok(real) = fs::canonicalize(root.path(&folder)) else { continue };
            if seen.contains(&real) {
                continue;
            }
            seen.push(real);
            found.extend(library(root, &folder));
            let names = root.names(&format!("{folder}/libibverbs"));
            providers.extend(names.iter().filter_map(|name| Provider::parse(name)));
        }
        Library { loaded: None, found, configured: configured(root), providers }
    }

    /// The one that counts: the one that was loaded, or else the first that there is.
    pub fn used(&self) -> Option<&LibraryFile> {
        match &self.loaded {
            Some(Ok(loaded)) => Some(&loaded.file),
            _ => self.found.first(),
        }
    }

    /// The private interfaces that there are builds of the provider for; none if it is not installed.
    pub fn provider_interfaces(&self, name: &str) -> Vec<u32> {
        let builds = self.providers.iter().filter(|provider| provider.name == name);
        builds.map(|provider| provider.interface).collect()
    }
}

impl Provider {
    /// `rxe` for interface 34 from `librxe-rdmav34.so`.
    fn parse(file: &str) -> Option<Self> {
        let (name, rest) = file.strip_prefix("lib")?.rsplit_once("-rdmav")?;
        let interface = rest.strip_suffix(".so")?.parse().ok()?;
        Some(Provider { name: name.to_owned(), interface })
    }
}

/// The private interface that a library has: it stands in the file as the version of the functions for providers.
pub(super) fn private_interface(root: &Root, path: &str) -> Option<u32> {
    let bytes = root.bytes(path, LONGEST_LIBRARY)?;
    let number = bytes.windows(PRIVATE.len()).position(|window| window == PRIVATE)? + PRIVATE.len();
    let digits = bytes[number..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.map(|byte| char::from(*byte)).collect::<String>().parse().ok()
}

/// libibverbs.so.1 in that folder.
fn library(root: &Root, folder: &str) -> Option<LibraryFile> {
    let path = format!("{folder}/{SONAME}");
    if !root.has(&path) {
        return None;
    }
    // The link points to a file whose name ends in the release: libibverbs.so.1.14.44.0.
    let name = root.link_name(&path).unwrap_or_else(|| SONAME.to_owned());
    let rdma_core = name.strip_prefix(SONAME).and_then(|rest| rest.split('.').nth(2)?.parse().ok());
    let interface = private_interface(root, &path);
    Some(LibraryFile { path: format!("{folder}/{name}"), rdma_core, interface })
}

/// Folders that the dynamic linker searches.
fn folders(root: &Root) -> Vec<String> {
    let mut folders = Vec::new();
    let mut files = vec!["/etc/ld.so.conf".to_owned()];
    files.extend(root.names("/etc/ld.so.conf.d").iter().map(|name| format!("/etc/ld.so.conf.d/{name}")));
    for file in files.iter().take(MOST_FILES) {
        let text = root.text(file).unwrap_or_default();
        folders.extend(text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(str::to_owned));
    }
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    folders.extend([format!("/usr/lib/{triplet}"), format!("/lib/{triplet}")]);
    folders.extend(["/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib"].map(str::to_owned));
    folders.truncate(MOST_FILES);
    folders
}

/// The lines `driver NAME` in /etc/libibverbs.d.
fn configured(root: &Root) -> Vec<String> {
    let files = root.names("/etc/libibverbs.d").into_iter().filter(|name| name.ends_with(".driver")).take(MOST_FILES);
    let texts = files.filter_map(|name| root.text(&format!("/etc/libibverbs.d/{name}")));
    let mut names = Vec::new();
    for text in texts {
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix("driver"));
        names.extend(lines.filter_map(|rest| rest.trim().rsplit('/').next().map(str::to_owned)));
    }
    names
}

/// Functions that are used where they are there: the release of rdma-core that brought them, and what they are for.
pub const RDMA_CORE_FEATURES: [(u32, &str, &str); 5] = [
    (24, "ibv_qp_to_qp_ex", "posting by ibv_wr_*"),
    (28, "ibv_reg_mr_iova2", "registering at an address of one's choice"),
    (31, "ibv_query_ece", "enhanced connection establishment"),
    (32, "_ibv_query_gid_table", "telling of the kinds of GIDs"),
    (34, "ibv_reg_dmabuf_mr", "registering of DMA-buf memory"),
];

const SONAME: &str = "libibverbs.so.1";
const PRIVATE: &[u8] = b"IBVERBS_PRIVATE_";
const MOST_FILES: usize = 256;
/// Many times the size of any there is.
const LONGEST_LIBRARY: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn libraries_are_found_once_with_their_release() {
        let fixture = Fixture::rxe_host();
        // The same folder by another name.
        fixture.link("lib64", "usr/lib64");
        let library = Library::read(&Root::new(fixture.path()));
        let path = "/usr/lib64/libibverbs.so.1.14.44.0".to_owned();
        let expected = LibraryFile { path, rdma_core: Some(44), interface: Some(34) };
        assert_eq!(library.found, [expected]);
        assert_eq!(library.configured, ["rxe"]);
        assert_eq!(library.provider_interfaces("rxe"), [34]);
        assert!(library.provider_interfaces("mlx5").is_empty());
    }

    #[test]
    fn files_that_tell_no_private_interface_have_none() {
        let fixture = Fixture::new();
        fixture.file("none", "ELF").file("cut", "\0IBVERBS_PRIVATE_").file("huge", "IBVERBS_PRIVATE_99999999999\0");
        let root = Root::new(fixture.path());
        for name in ["none", "cut", "huge", "absent"] {
            assert_eq!(private_interface(&root, name), None, "{name}");
        }
    }

    #[test]
    fn other_names_have_no_release() {
        let fixture = Fixture::new();
        fixture.file("usr/lib64/libibverbs.so.1", "").file("etc/ld.so.conf.d/a.conf", "# x\n/opt/lib\n");
        fixture.link("opt/lib/libibverbs.so.1", "libibverbs.so.1.0.x").file("opt/lib/libibverbs.so.1.0.x", "");
        let found = Library::read(&Root::new(fixture.path())).found;
        let releases: Vec<_> = found.iter().map(|file| (file.path.as_str(), file.rdma_core)).collect();
        assert_eq!(releases, [("/opt/lib/libibverbs.so.1.0.x", None), ("/usr/lib64/libibverbs.so.1", None)]);
        for name in ["librxe.so", "librxe-rdmav.so", "rxe-rdmav34.so", "librxe-rdmav34.so.1"] {
            assert_eq!(Provider::parse(name), None, "{name}");
        }
    }
}
