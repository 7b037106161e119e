//! Ends the build for anything but Linux with one error, instead of one for each call that is not there.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system != "linux") {
        println!(
            "cargo::error=agent-proxy runs agents on Linux alone: it rests on cgroups, namespaces, pidfds and subreapers. Elsewhere run \
             `agent-proxy serve` in a Linux virtual machine or container, and reach it by agent-proxy built with --no-default-features, its \
             page or its clients (docs/platforms.md)"
        );
    }
}
