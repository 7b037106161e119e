//! The file `webhooks.toml`: whose webhooks are taken, and where ours go.
//!
//! ```toml
//! [in.github]
//! sender = "github"                 # github, slack, hmac
//! secret_file = "github.secret"     # or secret_env = "GITHUB_SECRET"
//! per_minute = 600
//!
//! [out.ops]
//! url = "https://ops.example/agents"   # or command = ["notify", "--json"]
//! secret_file = "ops.secret"
//! events = ["permission:requested", "turn:ended"]
//! labels = { user = "ada" }
//!
//! [callbacks]
//! hosts = ["ci.example"]
//! secret_file = "ops.secret"
//!
//! [links]
//! base_url = "https://agents.example"
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use agents::ConfigDir;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{
    CALLBACKS,
    outgoing::Receiver,
    signature::{WebhookKey, WebhookSender},
};
use crate::ProblemDetails;

/// Time after which a delivery is given up, unless another is configured.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60 * 60);
/// Pause before the second try.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Time for one try.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(15);
/// Time in which a link has to be used.
const LINK_LIFE: Duration = Duration::from_secs(60 * 60);

/// Deliveries of a sender that are taken in a minute, unless others are configured.
const DELIVERIES_PER_MINUTE: u32 = 600;

/// What a webhook of ours is sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum WebhookEvent {
    /// An agent requests a permission.
    #[serde(rename = "permission:requested")]
    PermissionRequested,
    /// A turn has ended, however.
    #[serde(rename = "turn:ended")]
    TurnEnded,
    /// A session has ended.
    #[serde(rename = "session:ended")]
    SessionEnded,
    /// A session has used up a budget.
    #[serde(rename = "budget:exceeded")]
    BudgetExceeded,
}

impl WebhookEvent {
    const ALL: [Self; 4] = [Self::PermissionRequested, Self::TurnEnded, Self::SessionEnded, Self::BudgetExceeded];
}

/// The file as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebhookFile {
    r#in: BTreeMap<String, IncomingEntry>,
    out: BTreeMap<String, OutgoingEntry>,
    callbacks: Option<CallbackEntry>,
    links: LinkEntry,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IncomingEntry {
    sender: WebhookSender,
    #[serde(default)]
    secret_file: Option<PathBuf>,
    #[serde(default)]
    secret_env: Option<String>,
    #[serde(default)]
    stream: Option<String>,
    #[serde(default)]
    per_minute: Option<u32>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OutgoingEntry {
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    secret_file: Option<PathBuf>,
    #[serde(default)]
    secret_env: Option<String>,
    #[serde(default)]
    events: Option<Vec<WebhookEvent>>,
    #[serde(default)]
    labels: SessionLabels,
    #[serde(default, deserialize_with = "duration")]
    give_up_after: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    retry_after: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    timeout: Option<Duration>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallbackEntry {
    hosts: Vec<String>,
    #[serde(default)]
    secret_file: Option<PathBuf>,
    #[serde(default)]
    secret_env: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    give_up_after: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    retry_after: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    timeout: Option<Duration>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LinkEntry {
    base_url: Option<String>,
    #[serde(deserialize_with = "duration")]
    life: Option<Duration>,
}

/// Labels that a session has to have. None is any session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SessionLabels {
    pub(super) agent: Option<String>,
    pub(super) user: Option<String>,
    pub(super) workspace: Option<String>,
    pub(super) r#type: Option<String>,
    pub(super) tag: Option<String>,
}

fn duration<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(value)?;
    humantime::parse_duration(&text).map(Some).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
}

/// Configuration with its secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookConfig {
    pub(super) incoming: BTreeMap<String, IncomingHook>,
    pub(super) outgoing: Vec<OutgoingHook>,
    pub(super) callbacks: Option<CallbackConfig>,
    pub(super) links: LinkConfig,
}

/// Sender whose webhooks are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IncomingHook {
    pub(super) sender: WebhookSender,
    pub(super) key: WebhookKey,
    /// Name of the stream; `{a.b}` in it stands for what the event's payload has there.
    pub(super) stream: String,
    /// Deliveries that are taken in a minute, and at once.
    pub(super) per_minute: u32,
}

/// Receiver of our webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OutgoingHook {
    pub(super) name: String,
    pub(super) target: WebhookTarget,
    pub(super) events: Vec<WebhookEvent>,
    pub(super) labels: SessionLabels,
    pub(super) retry: RetryPolicy,
}

/// Place to which a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WebhookTarget {
    /// An address, with the secret of the signature.
    Url(String, WebhookKey),
    /// A command, which gets the message on its standard input.
    Command(Vec<String>),
}

/// Times of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetryPolicy {
    /// Pause before the second try; each further one doubles, up to five minutes.
    pub(super) first: Duration,
    pub(super) give_up_after: Duration,
    /// Time for one try.
    pub(super) timeout: Duration,
}

/// Calls that callers of `ask` get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallbackConfig {
    pub(super) hosts: Vec<String>,
    pub(super) key: WebhookKey,
    pub(super) retry: RetryPolicy,
}

/// Links that answer a permission request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkConfig {
    pub(super) base_url: Option<String>,
    pub(super) life: Duration,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self { base_url: None, life: LINK_LIFE }
    }
}

impl WebhookConfig {
    /// Returns true if messages are sent: that takes a state directory.
    pub fn sends(&self) -> bool {
        !self.outgoing.is_empty() || self.callbacks.is_some()
    }

    /// Returns true if nothing is taken or sent.
    pub(super) fn is_empty(&self) -> bool {
        self.incoming.is_empty() && !self.sends() && self.links == LinkConfig::default()
    }

    /// Returns the receivers by name, with their times.
    pub(super) fn receivers(&self) -> BTreeMap<String, (Receiver, RetryPolicy)> {
        let hooks = self.outgoing.iter().cloned().map(|hook| (hook.name.clone(), Receiver::of(hook)));
        let callbacks = self.callbacks.clone().map(|callbacks| {
            let receiver = Receiver::Callbacks { hosts: callbacks.hosts, key: callbacks.key };
            (CALLBACKS.to_owned(), (receiver, callbacks.retry))
        });
        hooks.chain(callbacks).collect()
    }

    /// Lists the entries that differ in another configuration, by their place in the file.
    pub(super) fn changes(&self, new: &Self) -> Vec<String> {
        let outgoing = |config: &Self| -> BTreeMap<String, OutgoingHook> {
            config.outgoing.iter().map(|hook| (hook.name.clone(), hook.clone())).collect()
        };
        let mut changes = differences("in", &self.incoming, &new.incoming);
        changes.extend(differences("out", &outgoing(self), &outgoing(new)));
        changes.extend((self.callbacks != new.callbacks).then(|| "callbacks changed".to_owned()));
        changes.extend((self.links != new.links).then(|| "links changed".to_owned()));
        changes
    }
}

impl WebhookFile {
    /// Reads the secrets that the file names.
    ///
    /// # Errors
    /// `invalid-config` with the entry, and what is wrong there.
    pub fn resolve(
        self,
        directory: &ConfigDir,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<WebhookConfig, ProblemDetails> {
        let key = |place: &str, file: Option<PathBuf>, name: Option<String>| {
            let secret = match (file, name) {
                (Some(file), None) => directory.secret(&file)?.expose().to_owned(),
                (None, Some(name)) => variable(&name)
                    .map(|secret| secret.trim().to_owned())
                    .filter(|secret| !secret.is_empty())
                    .ok_or_else(|| invalid(place, &format!("secret_env: ${name} is not set: export it")))?,
                _ => return Err(invalid(place, "give one of secret_file (mode 0600) and secret_env: it is signed")),
            };
            WebhookKey::parse(&secret).map_err(|why| invalid(place, &format!("the secret: {why}")))
        };
        let mut config = WebhookConfig::default();
        for (name, entry) in self.r#in {
            let place = format!("in.{name}");
            check_name(&place, &name)?;
            let stream = entry.stream.unwrap_or_else(|| format!("hooks/{name}"));
            let key = key(&place, entry.secret_file, entry.secret_env)?;
            let per_minute = entry.per_minute.unwrap_or(DELIVERIES_PER_MINUTE);
            if per_minute == 0 {
                return Err(invalid(&place, "per_minute: give 1 or more, or remove the entry"));
            }
            config.incoming.insert(name, IncomingHook { sender: entry.sender, key, stream, per_minute });
        }
        for (name, entry) in self.out {
            let place = format!("out.{name}");
            check_name(&place, &name)?;
            let target = match (entry.url, entry.command.is_empty()) {
                (Some(url), true) => {
                    check_url(&url).map_err(|why| invalid(&place, &format!("url: {why}")))?;
                    WebhookTarget::Url(url, key(&place, entry.secret_file, entry.secret_env)?)
                }
                (None, false) => WebhookTarget::Command(entry.command),
                _ => return Err(invalid(&place, "give one of url and command")),
            };
            let retry = RetryPolicy::new(entry.retry_after, entry.give_up_after, entry.timeout);
            let events = entry.events.unwrap_or_else(|| WebhookEvent::ALL.to_vec());
            config.outgoing.push(OutgoingHook { name, target, events, labels: entry.labels, retry });
        }
        if let Some(entry) = self.callbacks {
            let key = key("callbacks", entry.secret_file, entry.secret_env)?;
            let retry = RetryPolicy::new(entry.retry_after, entry.give_up_after, entry.timeout);
            let hosts = entry.hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
            config.callbacks = Some(CallbackConfig { hosts, key, retry });
        }
        if let Some(base) = &self.links.base_url {
            check_url(base).map_err(|why| invalid("links", &format!("base_url: {why}")))?;
        }
        let base_url = self.links.base_url.map(|base| base.trim_end_matches('/').to_owned());
        config.links = LinkConfig { base_url, life: self.links.life.unwrap_or(LINK_LIFE) };
        Ok(config)
    }
}

/// Lists the names that are not the same in two tables.
fn differences<T: PartialEq>(table: &str, old: &BTreeMap<String, T>, new: &BTreeMap<String, T>) -> Vec<String> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let of_name = |name: &String| match (old.get(name), new.get(name)) {
        (Some(old), Some(new)) if old == new => None,
        (Some(_), Some(_)) => Some(format!("{table}.{name} changed")),
        (Some(_), None) => Some(format!("{table}.{name} removed")),
        (None, _) => Some(format!("{table}.{name} added")),
    };
    names.into_iter().filter_map(of_name).collect()
}

impl RetryPolicy {
    fn new(first: Option<Duration>, give_up_after: Option<Duration>, timeout: Option<Duration>) -> Self {
        Self {
            first: first.unwrap_or(FIRST_RETRY).max(Duration::from_millis(1)),
            give_up_after: give_up_after.unwrap_or(GIVE_UP_AFTER),
            timeout: timeout.unwrap_or(DELIVERY_TIMEOUT),
        }
    }
}

fn invalid(place: &str, why: &str) -> ProblemDetails {
    ProblemDetails::new("invalid-config", format!("webhooks.toml, [{place}]: {why}"))
}

/// Checks a name, which is a segment of paths.
fn check_name(place: &str, name: &str) -> Result<(), ProblemDetails> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(is_name) && !name.starts_with('.') {
        return Ok(());
    }
    Err(invalid(place, "a name has 1 to 64 letters, digits, `.`, `_`, `-`, and begins with no dot"))
}

/// Returns the host of an address with its port, if it names one, in lower case.
///
/// # Errors
/// It is no address by `http` or `https`, or has a login in it.
pub(super) fn check_url(url: &str) -> Result<String, String> {
    let uri: axum::http::Uri = url.parse().map_err(|error| format!("{error}"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("it begins with neither http:// nor https://".to_owned());
    }
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    match authority.is_empty() || authority.contains('@') {
        true => Err("it names no host, or a login".to_owned()),
        false => Ok(authority.to_ascii_lowercase()),
    }
}
