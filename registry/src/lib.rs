//! Spawn, track, list, signal and reap the processes of a session, and prove them gone.
//!
//! The one crate with `unsafe` code, all of it in `sys.rs`.

mod kill;
mod pidfd;
mod proc;
mod registry;
mod sample;
mod spawn;
mod sys;
mod unavailable;

pub use kill::{Kill, KillScope, KillStep};
pub use pidfd::PidFd;
pub use proc::{environment_value, has_children_lists, identify, is_exiting, own_children};
pub use registry::{Children, ProcessRegistry, Reaped, RegistryEvent, reap_children};
pub use spawn::{Input, Output, Spawn, SpawnError, Spawned, spawn};
pub use sys::{Title, fork_child, inherited_fds, is_single_threaded};
pub use unavailable::Unavailable;
