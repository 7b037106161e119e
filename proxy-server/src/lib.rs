//! The HTTP API of agent-proxy: [`router`] serves the sessions of a [`ProxyManager`] under `/v1`.
//!
//! Mount it in a server of yours, behind your own authentication:
//!
//! ```no_run
//! # async fn example(manager: proxy_manager::ProxyManager) -> std::io::Result<()> {
//! use proxy_server::ServerOptions;
//!
//! let app = axum::Router::new().nest("/agents", proxy_server::router(manager, ServerOptions::default()));
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! axum::serve(listener, app).await
//! # }
//! ```
//!
//! The router has no authentication of its own: whoever reaches it may start programs. The daemon of the program `agent-proxy` is the same
//! router behind its listeners.

mod access;
#[cfg(feature = "acp")]
pub mod acp;
pub mod api;
#[cfg(any(feature = "acp", feature = "mcp"))]
mod api_client;
mod configuration;
mod configuration_reloader;
mod docs_page;
mod doctor;
#[cfg(test)]
mod documented;
mod durable_streams;
mod event_filter;
mod event_page;
mod file_stamps;
#[cfg(feature = "fleet")]
mod fleet;
mod idempotency;
pub mod installed_agents;
mod instances;
mod json_node;
mod list_page;
#[cfg(feature = "mcp")]
pub mod mcp;
mod metrics;
#[cfg(feature = "openapi")]
pub mod openapi;
mod plain_page;
mod request_bounds;
mod requests;
mod route_table;
mod routes;
mod session_ids;
mod socket;
mod stream;
mod terminal_socket;
#[cfg(feature = "otlp")]
mod traces;
mod webhooks;
mod websocket;

use std::{sync::Arc, time::Duration};

use axum::Router;
use proxy_manager::ProxyManager;

#[doc(inline)]
pub use api_types::{KINDS, ProblemDetails, ProgramExit, Role, api::WebhookStatus, exit};
#[doc(inline)]
pub use proxy_manager::error_text;

#[cfg(any(feature = "acp", feature = "mcp"))]
pub use self::api_client::{ApiService, service_of};
pub use self::{
    access::{
        AuditLog, Identity, KeyFetch, LoginLink, LoginStore, NetworkAccess, OidcVerifier, Peer, Policy, PolicyRules,
        TokenError, TokenFile, TokenInfo, TrustedProxy, name_caller, require_token, trust_root, write_private,
    },
    configuration::{ConfigurationSource, LoadedConfiguration, model_json, profile_json},
    configuration_reloader::ConfigurationReloader,
    doctor::{CheckVerdict, DoctorCheck, DoctorProbe},
    instances::{AgentInstance, InstanceOptions, InstancePool, InstanceStatus},
    metrics::ServerMetrics,
    requests::MAX_BODY,
    routes::{StopMode, StopOrder, StopProgress, StopRequests},
    session_ids::resolve_among,
    webhooks::{WebhookConfig, WebhookFile, WebhookRequest, WebhookSend, WebhookSender, Webhooks},
};

#[cfg(feature = "fleet")]
pub use self::fleet::{FleetGateway, FleetSettings};
#[cfg(feature = "otlp")]
pub use self::traces::TraceExport;

/// What the router offers besides the manager's sessions. By default nothing.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Configuration files whose changes are read before a session starts.
    pub configuration: Option<ConfigurationReloader>,
    /// End of the program, for `POST /v1/stop`. Without it there is no such route.
    pub stop: Option<StopProgress>,
    /// Metrics, for `GET /metrics`. Without them there is no such route.
    pub metrics: Option<ServerMetrics>,
    /// True to serve the page for people, at `/`.
    pub page: bool,
    /// Checks of this system, for `GET /v1/doctor`.
    pub doctor: Option<DoctorProbe>,
    /// Instances of an agent's own server, for `GET /instance/{name}`.
    pub instances: Option<InstancePool>,
    /// The program around the router, for `GET /v1/health`.
    pub daemon: Option<api::DaemonDescription>,
    /// Log of who changes what.
    pub audit: Option<AuditLog>,
    /// What callers may ask for at most.
    pub policy: Option<Policy>,
    /// Logins of pages, for `POST /v1/login-links`.
    pub logins: Option<LoginStore>,
    /// Webhooks, for `POST /v1/hooks/{name}`.
    pub webhooks: Option<Webhooks>,
    /// Time for the answer of a route that waits for nobody; 60 s by default.
    pub answer_time: Option<Duration>,
    /// Place in a fleet of nodes.
    #[cfg(feature = "fleet")]
    pub fleet: Option<FleetGateway>,
}

impl ServerOptions {
    /// Serves the page for people. It is static; what it shows, it asks the API for.
    #[must_use]
    pub fn with_page(self) -> Self {
        Self { page: true, ..self }
    }

    /// Describes the program around the router to its clients.
    #[must_use]
    pub fn with_daemon(self, daemon: api::DaemonDescription) -> Self {
        Self { daemon: Some(daemon), ..self }
    }

    /// Records who changes what, in a file and in the events of sessions.
    #[must_use]
    pub fn with_audit(self, audit: AuditLog) -> Self {
        Self { audit: Some(audit), ..self }
    }

    /// Restricts what callers may ask for.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Lets callers make login links for pages. Give the same store to [`NetworkAccess::with_logins`].
    #[must_use]
    pub fn with_logins(self, logins: LoginStore) -> Self {
        Self { logins: Some(logins), ..self }
    }

    /// Takes webhooks, and the callbacks of asks.
    #[must_use]
    pub fn with_webhooks(self, webhooks: Webhooks) -> Self {
        Self { webhooks: Some(webhooks), ..self }
    }

    /// Sets the time for the answer of a route that waits for nobody. A later one is the problem `deadline`.
    #[must_use]
    pub fn with_answer_time(self, answer_time: Duration) -> Self {
        Self { answer_time: Some(answer_time), ..self }
    }

    /// Serves a node of a fleet: requests about sessions of other nodes are passed on to them.
    #[cfg(feature = "fleet")]
    #[must_use]
    pub fn with_fleet(self, fleet: FleetGateway) -> Self {
        Self { fleet: Some(fleet), ..self }
    }

    /// Serves metrics.
    #[must_use]
    pub fn with_metrics(self, metrics: ServerMetrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Runs checks of this system for clients.
    #[must_use]
    pub fn with_doctor(self, doctor: DoctorProbe) -> Self {
        Self { doctor: Some(doctor), ..self }
    }

    /// Serves instances of an agent's own server.
    #[must_use]
    pub fn with_instances(self, instances: InstancePool) -> Self {
        Self { instances: Some(instances), ..self }
    }

    /// Reads changes of configuration files before a session starts.
    #[must_use]
    pub fn with_configuration(self, configuration: ConfigurationReloader) -> Self {
        Self { configuration: Some(configuration), ..self }
    }

    /// Lets clients end the program.
    #[must_use]
    pub fn with_stop(self, stop: StopProgress) -> Self {
        Self { stop: Some(stop), ..self }
    }
}

/// Builds the router of the whole API. Its routes begin with `/v1`.
pub fn router(manager: ProxyManager, options: ServerOptions) -> Router {
    let ServerOptions {
        configuration,
        stop,
        metrics,
        page,
        doctor,
        instances,
        daemon,
        audit,
        policy,
        logins,
        webhooks,
        answer_time,
        #[cfg(feature = "fleet")]
        fleet,
    } = options;
    let policy = policy.filter(|policy| !policy.is_empty()).map(Arc::new);
    let starters = access::SessionStarters::default();
    let server = ServerParts {
        manager,
        configuration,
        stop,
        metrics,
        page,
        doctor,
        instances,
        daemon,
        audit,
        policy,
        logins,
        webhooks,
        answer_time: answer_time.unwrap_or(request_bounds::ANSWER_TIME),
        starters,
        holds: routes::HeldSessions::default(),
        #[cfg(feature = "fleet")]
        fleet,
    };
    routes::router(ApiState(Arc::new(server)))
}

/// State of the routes. Every layer of the router clones it for every request, so clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ApiState(Arc<ServerParts>);

impl std::ops::Deref for ApiState {
    type Target = ServerParts;

    fn deref(&self) -> &ServerParts {
        &self.0
    }
}

/// What a server was made of.
#[derive(Debug)]
pub(crate) struct ServerParts {
    manager: ProxyManager,
    configuration: Option<ConfigurationReloader>,
    stop: Option<StopProgress>,
    metrics: Option<ServerMetrics>,
    page: bool,
    doctor: Option<DoctorProbe>,
    instances: Option<InstancePool>,
    daemon: Option<api::DaemonDescription>,
    audit: Option<AuditLog>,
    policy: Option<Arc<Policy>>,
    logins: Option<LoginStore>,
    webhooks: Option<Webhooks>,
    answer_time: Duration,
    /// Callers who have started the sessions that live.
    starters: access::SessionStarters,
    holds: routes::HeldSessions,
    #[cfg(feature = "fleet")]
    fleet: Option<FleetGateway>,
}
