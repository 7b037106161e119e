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
    caller::{Caller, SessionStarters, with_options},
    login::remove_cookie,
    network::UrlScheme,
    request_rate::RateBucket,
    role_check::{changes, check_role},
};

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What a caller may do. Each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Look at sessions, processes and events.
    Read,
    /// Start, prompt, answer, kill and forget sessions as well. Who starts a session runs any program as the server's user.
    Operate,
    /// End the server and import events as well.
    Admin,
}

impl Role {
    /// All roles, the least first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Operate, Self::Admin];

    /// Returns the name of the role: `read`, `operate`, `admin`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| format!("there is no role {text:?}: read, operate, admin"))
    }
}

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
