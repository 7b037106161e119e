//! Check of the isolation that this machine offers, in a process that is no child of the host: the check forks processes, and a host
//! may count its children, or reap them all.

use std::{io::Write, os::fd::OwnedFd};

use ipc_protocol::{
    codec::encode,
    message::{MissingFeature, ProbedMachine},
};
use registry::{ProcConnector, UnavailableFeature};

/// Checks everything, sends the result to `fds[0]`, and returns the exit code.
pub(crate) fn main(fds: Vec<OwnedFd>) -> u8 {
    let Some(socket) = fds.into_iter().next() else { return 1 };
    let probed = ProbedMachine {
        strict: wire_result(registry::strict_is_available()),
        connector: wire_result(ProcConnector::probe()),
    };
    let mut bytes = Vec::new();
    let told =
        encode(&probed, &mut bytes).is_ok() && std::os::unix::net::UnixStream::from(socket).write_all(&bytes).is_ok();
    u8::from(!told)
}

fn wire_result(tried: Result<(), UnavailableFeature>) -> Result<(), MissingFeature> {
    tried.map_err(|UnavailableFeature { what, why, advice }| MissingFeature { what, why, advice })
}
