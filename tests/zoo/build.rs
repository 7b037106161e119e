//! Compiles the two C programs. C, because its members need bare `clone`, `vfork`, `ptrace` and signal handlers that fork.

use std::path::PathBuf;

const SOURCES: &[&str] =
    &["zoo.c", "families.c", "storms.c", "signals.c", "disguises.c", "namespaces.c", "groups.c", "without.c"];

fn main() {
    println!("cargo::rerun-if-changed=c");
    compile("ZOO", "zoo", SOURCES);
    compile("ESCAPES", "escapes", &["escapes.c"]);
}

fn compile(variable: &str, name: &str, sources: &[&str]) {
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("c");
    let program = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join(name);
    let compiler = cc::Build::new().opt_level(1).get_compiler();
    let status = compiler
        .to_command()
        .args(["-std=gnu11", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&program)
        .args(sources.iter().map(|source| folder.join(source)))
        .status()
        .expect("a C compiler can be started");
    assert!(status.success(), "the C compiler failed: {status}");
    println!("cargo::rustc-env={variable}={}", program.display());
}
