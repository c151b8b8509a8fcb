//! Names the shared library as the driver's, so that who loads `libcuda.so` in a process that has it gets it again.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
