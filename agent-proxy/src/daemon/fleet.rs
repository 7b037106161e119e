//! A daemon as the node of a fleet, in a build that can be one (feature `fleet`).

use std::path::Path;

use proxy_manager::{ManagerBuilder, ProxyManager};
use proxy_server::{ProblemDetails, ServerOptions};

use crate::args::FleetArgs;

/// What a node tells of itself besides its arguments.
#[derive(Debug)]
#[cfg_attr(not(feature = "fleet"), expect(dead_code, reason = "a build with fleets reads them"))]
pub(super) struct NodeDescription<'a> {
    /// Agents of which it can start a session.
    pub(super) agents: Vec<String>,
    /// Addresses at which it is reached.
    pub(super) addresses: Vec<String>,
    /// Directory with its sessions.
    pub(super) state_dir: Option<&'a Path>,
    /// Most sessions of one user.
    pub(super) max_per_user: Option<usize>,
}

#[cfg(feature = "fleet")]
pub(super) use self::node::{FleetNode, FleetShipping};

/// Shipping that no build without the feature has.
#[cfg(not(feature = "fleet"))]
#[derive(Debug)]
pub(super) enum FleetShipping {}

#[cfg(not(feature = "fleet"))]
impl FleetShipping {
    pub(super) fn prepare(_: &FleetArgs, builder: ManagerBuilder, _: bool) -> (ManagerBuilder, Option<Self>) {
        (builder, None)
    }
}

/// Node that no build without the feature can be.
#[cfg(not(feature = "fleet"))]
#[derive(Debug)]
pub(super) enum FleetNode {}

#[cfg(not(feature = "fleet"))]
impl FleetNode {
    pub(super) async fn join(
        args: &FleetArgs,
        _: NodeDescription<'_>,
        _: &ProxyManager,
        _: Option<FleetShipping>,
    ) -> Result<Option<Self>, ProblemDetails> {
        match args.fleet.is_empty() {
            true => Ok(None),
            false => {
                let detail =
                    "--fleet: this build has no fleets: build it with `cargo install agent-proxy --features fleet`";
                Err(ProblemDetails::new("unsupported", detail))
            }
        }
    }

    pub(super) fn add_to(&self, _: ServerOptions) -> ServerOptions {
        match *self {}
    }

    pub(super) async fn serve(&self, _: axum::Router) -> Result<(), ProblemDetails> {
        match *self {}
    }

    pub(super) fn drain(&self) {
        match *self {}
    }

    pub(super) async fn leave(self) {
        match self {}
    }
}

#[cfg(feature = "fleet")]
mod node {
    use std::{fs, io::Write as _, sync::Arc};

    use fleet::{EngineAddress, FleetConfig, FleetMember, FleetReplicator, JoinError, NodeName, SHORTEST_LEASE};
    use ipc_protocol::ErrorChain;
    use proxy_manager::replication::Replication;
    use proxy_server::{FleetGateway, FleetSettings};

    use super::{FleetArgs, ManagerBuilder, NodeDescription, Path, ProblemDetails, ProxyManager, ServerOptions};

    /// File with the identity of a state directory's node.
    const IDENTITY: &str = "fleet-node";

    /// What ships the events of this daemon's sessions, once it has joined.
    #[derive(Debug)]
    pub(in super::super) struct FleetShipping(FleetReplicator);

    impl FleetShipping {
        /// Has a manager's events go to the fleet's log, where its sessions are kept.
        pub(in super::super) fn prepare(
            args: &FleetArgs,
            builder: ManagerBuilder,
            keeps_sessions: bool,
        ) -> (ManagerBuilder, Option<Self>) {
            if args.fleet.is_empty() || !keeps_sessions {
                return (builder, None);
            }
            let replicator = FleetReplicator::default();
            (builder.replication(Replication::new(Arc::new(replicator.clone()))), Some(Self(replicator)))
        }
    }

    /// This daemon's place in a fleet.
    #[derive(Debug)]
    pub(in super::super) struct FleetNode {
        gateway: FleetGateway,
        /// True if its sessions are there when it is started again.
        keeps_sessions: bool,
    }

    impl FleetNode {
        /// Joins the fleet that the arguments name, if they name one.
        ///
        /// # Errors
        /// `usage`, `fleet-unreachable`, `already-exists` for a name that another node has.
        pub(in super::super) async fn join(
            args: &FleetArgs,
            description: NodeDescription<'_>,
            manager: &ProxyManager,
            shipping: Option<FleetShipping>,
        ) -> Result<Option<Self>, ProblemDetails> {
            let Some(name) = args.node.as_deref().filter(|_| !args.fleet.is_empty()) else { return Ok(None) };
            let node: NodeName = name.parse().map_err(|error| ProblemDetails::usage(format!("--node: {error}")))?;
            if args.lease < SHORTEST_LEASE {
                return Err(ProblemDetails::usage(format!("--lease is {SHORTEST_LEASE:?} at the least")));
            }
            let NodeDescription { agents, addresses, state_dir, max_per_user } = description;
            let config = FleetConfig {
                engine: EngineAddress {
                    servers: args.fleet.clone(),
                    credentials: args.fleet_credentials.clone(),
                    nkey: args.fleet_nkey.clone(),
                    tls_ca: args.fleet_ca.clone(),
                    tls_identity: args.fleet_cert.clone().zip(args.fleet_key.clone()),
                },
                node,
                identity: state_dir.map(identity).transpose()?,
                lease: args.lease,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                addresses,
                labels: args.label.iter().cloned().collect(),
                capacity: args.capacity,
                agents,
                takes_over: args.take_over,
                layers: layers(manager).await,
                log_max_age: args.fleet_log_max_age,
            };
            let member = FleetMember::join(config).await.map_err(|error| problem(&error))?;
            if let Some(FleetShipping(replicator)) = shipping {
                replicator.start(member.clone(), manager.clone());
                // They can be claimed from now on.
                manager.resume_commands();
            }
            let settings = FleetSettings {
                max_per_user,
                workspace_hook: args.workspace_hook.clone(),
                ships_events: state_dir.is_some(),
            };
            let gateway = FleetGateway::new(member, manager.clone(), settings);
            Ok(Some(Self { gateway, keeps_sessions: state_dir.is_some() }))
        }

        /// Has a server be this node.
        pub(in super::super) fn add_to(&self, options: ServerOptions) -> ServerOptions {
            options.with_fleet(self.gateway.clone())
        }

        /// Answers the other nodes with these routes.
        pub(in super::super) async fn serve(&self, router: axum::Router) -> Result<(), ProblemDetails> {
            self.gateway.serve(router).await
        }

        /// Takes no more sessions.
        pub(in super::super) fn drain(&self) {
            self.gateway.drain();
        }

        /// Leaves the fleet. Sessions that are kept here stay this node's.
        pub(in super::super) async fn leave(self) {
            self.gateway.leave(self.keeps_sessions).await;
        }
    }

    /// Layers of containment that this machine can do. What cannot be found out is left out.
    async fn layers(manager: &ProxyManager) -> Vec<String> {
        let mut layers = vec!["baseline"];
        match manager.capabilities().await {
            Ok(capabilities) => {
                layers.extend(capabilities.cgroup.is_ok().then_some("cgroup"));
                layers.extend(capabilities.strict.is_ok().then_some("strict"));
                layers.extend(capabilities.landlock.is_ok().then_some("landlock"));
            }
            Err(error) => tracing::warn!(error = %ErrorChain(&error), "the layers of this machine are unknown"),
        }
        layers.into_iter().map(str::to_owned).collect()
    }

    fn problem(error: &JoinError) -> ProblemDetails {
        let kind = match error {
            JoinError::File { .. } | JoinError::TooOld { .. } => "usage",
            JoinError::NameTaken { .. } => "already-exists",
            JoinError::Unreachable { .. } | JoinError::Engine(_) => "fleet-unreachable",
        };
        ProblemDetails::new(kind, ErrorChain(error).to_string())
    }

    /// Identity of the node whose sessions a state directory has, which one program uses at a time. Blocks, shortly.
    fn identity(state_dir: &Path) -> Result<String, ProblemDetails> {
        let path = state_dir.join(IDENTITY);
        let failed = |error: std::io::Error| ProblemDetails::failed(format!("the file {}: {error}", path.display()));
        match fs::read_to_string(&path) {
            Ok(identity) if !identity.trim().is_empty() => Ok(identity.trim().to_owned()),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
            _ => {
                let identity = proxy_manager::SessionId::mint().to_string();
                let mut file = fs::File::create(&path).map_err(failed)?;
                file.write_all(identity.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
                Ok(identity)
            }
        }
    }
}
