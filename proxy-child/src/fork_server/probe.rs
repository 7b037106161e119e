//! Check of the isolation that this machine offers, in a process that is no child of the host: the check forks processes, and a host
//! may count its children, or reap them all.

use std::{
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use ipc_protocol::{
    codec::encode,
    message::{MissingFeature, ProbedFeature},
};
use registry::{ProcConnector, UnavailableFeature};

/// Checks the feature that `fds[0]` names, sends the result there, and returns the exit code.
pub(crate) fn main(fds: Vec<OwnedFd>) -> u8 {
    let Some(socket) = fds.into_iter().next() else { return 1 };
    u8::from(probe(UnixStream::from(socket)).is_none())
}

fn probe(mut socket: UnixStream) -> Option<()> {
    let (mut wanted, mut answer) = ([0], Vec::new());
    socket.read_exact(&mut wanted).ok()?;
    let tried = match ProbedFeature::ALL.get(usize::from(wanted[0]))? {
        ProbedFeature::Strict => registry::strict_is_available(),
        ProbedFeature::Connector => ProcConnector::probe(),
    };
    encode(&wire_result(tried), &mut answer).ok()?;
    socket.write_all(&answer).ok()
}

fn wire_result(tried: Result<(), UnavailableFeature>) -> Result<(), MissingFeature> {
    tried.map_err(|UnavailableFeature { what, why, advice }| MissingFeature { what, why, advice })
}
