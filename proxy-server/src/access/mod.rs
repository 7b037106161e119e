//! Who calls, and what that caller may do.

mod audit;
mod caller;
mod issuer_keys;
mod login;
mod network;
mod passed_on;
mod peer;
mod pinned_directory;
mod policy;
mod request_rate;
mod role_check;
mod token_file;
mod upstream;

pub(crate) use api_types::Role;

pub use self::{
    audit::AuditLog,
    issuer_keys::KeyFetch,
    login::{LoginLink, LoginStore},
    network::{NetworkAccess, require_token},
    passed_on::{name_caller, trust_root},
    peer::Peer,
    policy::{Policy, PolicyRules},
    token_file::{TokenError, TokenFile, TokenInfo, write_private},
    upstream::{OidcVerifier, TrustedProxy},
};
#[cfg(feature = "fleet")]
pub(crate) use self::{audit::RememberedCall, passed_on::PassedOnCaller, role_check::role_for};
pub(crate) use self::{
    audit::{AuditState, is_reserved, record},
    caller::{Caller, SessionStarters, ended_before, with_options},
    login::remove_cookie,
    network::UrlScheme,
    request_rate::RateBucket,
    role_check::{changes, check_role},
};

/// Caller of the API. Put one into the extensions of a request (`axum::Extension`) in a middleware of yours, in front of
/// [`router`](crate::router); a request without one comes from you, and may do everything.
///
/// ```
/// use proxy_server::{Identity, Role};
///
/// let ada = Identity::new("ada", Role::Operate).with_user("ada");
/// assert!(ada.role < Role::Admin);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name, for logs.
    pub name: String,
    /// What the caller may do.
    pub role: Role,
    /// The one user whose sessions the caller sees; `None` for those of all.
    pub user: Option<String>,
}

impl Identity {
    /// Creates the identity of a caller who sees the sessions of all users.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self { name: name.into(), role, user: None }
    }

    /// Shows the caller the sessions of this user alone; those that the caller starts are this user's.
    #[must_use]
    pub fn with_user(self, user: impl Into<String>) -> Self {
        Self { user: Some(user.into()), ..self }
    }
}
