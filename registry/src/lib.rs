//! Spawn, track, list, signal and reap the processes of a session, and prove them gone.
//!
//! The one crate with `unsafe` code, all of it in `sys`.
//!
//! # One way to the kernel
//!
//! Each kind of call has one way, in all crates:
//!
//! | kind of call | way |
//! |---|---|
//! | what the standard library has | `std` |
//! | signals (`kill`, masks, signalfd), `prctl`, ids of users and processes; of sockets what rustix lacks: many packets in one call, the peer's credentials and pidfd | `nix` |
//! | whatever is done with a descriptor (files, directories, pipes, sockets, pidfds, mounts, terminals, `poll`), clocks, resource limits | `rustix` |
//! | sockets with a name in the file system | `interprocess`, named and locked by [`local_socket`] |
//! | a filter on a socket | `socket2` |
//! | what runs between clone and exec, and what none of these has | `libc`, in `sys` alone; constants anywhere |
//!
//! Elsewhere than on Linux this crate, and with it all that need it, end in one `compile_error!`.
//!
//! An errno is classified by [`ipc_protocol::errno`], a file or directory locked by [`file_lock`].

cfg_if::cfg_if! {
    if #[cfg(target_os = "linux")] {
        mod ancestry;
        mod cgroup;
        mod connector;
        mod container;
        mod descriptors;
        pub mod file_lock;
        mod file_rules;
        mod hiding;
        mod kill;
        mod landlock;
        mod landlock_audit;
        mod lineage;
        mod listening;
        pub mod local_socket;
        mod machine_table;
        mod marker_pass;
        mod metadata_guard;
        mod namespace;
        mod oom;
        mod overlay;
        mod pidfd;
        mod proc;
        mod process_sight;
        mod process_table;
        mod procfs;
        mod registry;
        mod sample;
        mod sandbox;
        mod session_hold;
        mod socket_diag;
        mod socket_table;
        mod spawn;
        mod stat;
        mod sys;
        mod tcp_peer;
        mod tree_kill;
        mod unavailable;
        mod usage;
        mod watchdog;

        pub use ancestry::{is_below, top_of};
        pub use cgroup::{
            CgroupControllers, GroupUsage, ManagerCgroup, MountView, SessionCgroup, SweptCgroup, add_supervisor,
            free_supervisor, remember_own_group, remove_supervisor, thaw_v1,
        };
        pub use connector::{ProcConnector, ProcEvent, ReadOutcome};
        pub use container::{LabeledContainer, labeled_containers, prepare_engine, remove_container};
        pub use descriptors::{DescriptorUse, descriptors, raise_descriptor_limit};
        pub use file_rules::FileRules;
        pub use hiding::{HidingNamespace, hiding_layer};
        pub use kill::{KillLoop, KillStep, KillTarget, MarkerLook};
        pub use landlock::{LandlockScope, landlock_sandbox_is_available, landlock_scope_is_available, set_dumpable};
        pub use landlock_audit::LandlockAudit;
        pub use lineage::{Lineage, LineageEvent, LineageRoot};
        pub use listening::listening_sockets;
        pub use machine_table::{MachineProcess, machine_processes};
        pub use marker_pass::{MarkerPass, MarkerQuery};
        pub use namespace::{SessionNamespace, SessionNetwork, init_below, strict_is_available};
        pub use oom::{agent_oom_score_adj, protect_from_oom};
        pub use pidfd::PidFd;
        pub use proc::{
            boot_time, command_line, has_children_lists, identify, is_doomed, is_exiting, now_in_ticks, own_children,
            pid_of_pidfd, ticks_ago,
        };
        pub use process_sight::{ProcFs, ProcLookup, ProcessSight};
        pub use process_table::{
            SeenProcess, all_processes, find_process, find_process_with_marker, forks_since_boot, newest_pid,
            pids_are_unique_since, processes_with_marker,
        };
        pub use procfs::{has_private_proc, numbers_in_proc, open_proc_file};
        pub use registry::{ProcessRegistry, ReapOutcome, ReapedProcess, RegistryEvent, reap_children, stopped_children};
        pub use sandbox::SandboxMounts;
        pub use session_hold::SessionHold;
        pub use spawn::{SpawnError, SpawnInput, SpawnOutput, SpawnRequest, SpawnedProcess, spawn};
        pub use sys::{ProcessTitle, bound_arenas, fork_child, inherited_fds, is_single_threaded};
        pub use tcp_peer::{check_tcp_client, tcp_client_of};
        pub use tree_kill::kill_trees;
        pub use unavailable::UnavailableFeature;
        pub use usage::{LargeFile, ProcessUsage, ReadingScope, UsageReader, UsageReading, thread_time};
        pub use watchdog::{LimitVerdict, LimitWatchdog, file_size_exceeded};
    } else {
        compile_error!(
            "agent-proxy runs agents on Linux alone: it rests on cgroups, namespaces, pidfds and subreapers. Elsewhere run `agent-proxy \
             serve` in a Linux virtual machine or container, and reach it by agent-proxy built with --no-default-features, its page or its \
             clients (docs/platforms.md)"
        );
    }
}
