//! On what machine the figures were taken.

use std::{io::Read, thread::available_parallelism};

use crate::programs;

/// One line: kernel, processors, Node.
pub(crate) fn line() -> String {
    let kernel = nix::sys::utsname::uname()
        .map_or("unknown system".into(), |u| format!("{} {}", u.sysname().display(), u.release().display()));
    let cores = available_parallelism().map_or("?".into(), |n| n.to_string());
    format!("{kernel}, {cores} cores ({}), node {}", processor(), node().unwrap_or_else(|| "not there".into()))
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or("unknown", |(_, name)| name).to_owned()
}

fn node() -> Option<String> {
    let mut child = programs::start("node".as_ref(), &["--version".into()]).ok()?;
    let mut version = String::new();
    child.stdout.take()?.read_to_string(&mut version).ok()?;
    child.wait().ok()?;
    Some(version.trim().to_owned())
}
