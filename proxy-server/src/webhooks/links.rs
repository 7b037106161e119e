//! Links that answer a permission request, once: `GET` shows a page, and its button answers by `POST`. Who only looks at a link, as the
//! scanner of a mail server does, answers nothing.
//!
//! A link carries what it is for, signed with a key of the daemon's own. So it outlives a restart, as its request does in a session that
//! outlives the daemon.

use std::{
    collections::HashMap,
    fmt::Write as _,
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use api_types::printable;
use axum::{http::StatusCode, response::Response};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ipc_protocol::ErrorChain;
use proxy_manager::{OpenPermission, PermissionAnswer, ProxyManager, SessionId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    incoming::form_fields,
    signature::{WebhookKey, hash, seconds_since_epoch},
};
use crate::{
    access::write_private,
    plain_page::{escape, page},
};

/// Path of the page.
pub(super) const LINK_PATH: &str = "/v1/permission-link";
/// Name of whoever answers by a link.
const LINK_ACTOR: &str = "link";
/// Used links that are remembered, until they are too old anyway.
const MAX_USED: usize = 10_000;

/// Field of the page's form, and of a link's query.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub(crate) struct LinkForm {
    /// Token of the link.
    #[serde(default)]
    pub(crate) token: String,
}

impl LinkForm {
    /// Parses the body of the page's form.
    pub(crate) fn parse(body: &[u8]) -> Self {
        let token = form_fields(body).remove("token");
        Self { token: token.as_ref().and_then(|token| token.as_str()).unwrap_or_default().to_owned() }
    }
}

/// What a link does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LinkGrant {
    #[serde(rename = "s")]
    session: SessionId,
    #[serde(rename = "r")]
    request: String,
    /// What was asked, since an agent that is started again begins the ids of its requests anew.
    #[serde(rename = "d", default)]
    digest: String,
    #[serde(rename = "a")]
    allows: bool,
    /// End of its life, in seconds since 1970.
    #[serde(rename = "e")]
    expires_at: u64,
}

/// Reason why a link does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum LinkError {
    #[error("This link is not one of this server's.")]
    Unknown,
    #[error("This link is too old.")]
    Expired,
    #[error("This link was used, or the request was answered already, or its session has ended.")]
    Used,
    #[error("The agent offers no such answer.")]
    Refused,
}

impl LinkError {
    fn status(self) -> StatusCode {
        match self {
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::Expired | Self::Used => StatusCode::GONE,
            Self::Refused => StatusCode::CONFLICT,
        }
    }
}

/// Makes links and takes them.
#[derive(Debug)]
pub(super) struct PermissionLinks {
    key: WebhookKey,
    base_url: String,
    life: Duration,
    used: UsedLinks,
}

/// Hashes of used links, and the ends of their lives. A clone has the same.
type UsedLinks = Arc<Mutex<HashMap<String, u64>>>;

/// Links for one request.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LinkPair {
    allow: String,
    deny: String,
}

impl PermissionLinks {
    /// Takes the key in a file, which is made if it is not there, and the links that others have seen used. Blocks.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(super) fn open(file: &Path, base_url: String, life: Duration, others: Option<&Self>) -> io::Result<Self> {
        let bytes = match std::fs::read(file) {
            Ok(bytes) if bytes.len() >= 32 => bytes,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {
                let mut bytes = vec![0; 32];
                getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
                write_private(file, &bytes)?;
                bytes
            }
        };
        let used = others.map(|others| others.used.clone()).unwrap_or_default();
        Ok(Self { key: WebhookKey::of(bytes), base_url, life, used })
    }

    /// Makes the links for a request, as of a time.
    pub(super) fn create(&self, session: &SessionId, request: &OpenPermission, now: SystemTime) -> LinkPair {
        let expires_at = seconds_since_epoch(now + self.life);
        let digest = digest(request);
        let link = |allows| {
            let (session, digest) = (session.clone(), digest.clone());
            let grant = LinkGrant { session, request: request.id.clone(), digest, allows, expires_at };
            let grant = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&grant).unwrap_or_default());
            let signature = URL_SAFE_NO_PAD.encode(self.key.sign(&[grant.as_bytes()]));
            format!("{}{LINK_PATH}?token={grant}.{signature}", self.base_url)
        };
        LinkPair { allow: link(true), deny: link(false) }
    }

    fn parse(&self, token: &str, now: SystemTime) -> Result<LinkGrant, LinkError> {
        let (grant, signature) = token.split_once('.').ok_or(LinkError::Unknown)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| LinkError::Unknown)?;
        if !self.key.verifies(&[grant.as_bytes()], &signature) {
            return Err(LinkError::Unknown);
        }
        let bytes = URL_SAFE_NO_PAD.decode(grant).map_err(|_| LinkError::Unknown)?;
        let grant: LinkGrant = serde_json::from_slice(&bytes).map_err(|_| LinkError::Unknown)?;
        let now = seconds_since_epoch(now);
        if grant.expires_at <= now {
            return Err(LinkError::Expired);
        }
        if self.used.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&hash(&[token.as_bytes()])) {
            return Err(LinkError::Used);
        }
        Ok(grant)
    }

    /// Marks a link as used. Returns false for one that was used.
    fn consume(&self, token: &str, grant: &LinkGrant, now: SystemTime) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let now = seconds_since_epoch(now);
        if used.len() >= MAX_USED {
            used.retain(|_, until| *until > now);
        }
        used.insert(hash(&[token.as_bytes()]), grant.expires_at).is_none()
    }

    /// Shows the page of a link.
    pub(super) fn show(&self, manager: &ProxyManager, token: &str) -> Response {
        let shown = self.parse(token, SystemTime::now()).and_then(|grant| Ok((open_request(manager, &grant)?, grant)));
        match shown {
            Err(error) => page(error.status(), "Nothing to answer", &format!("<p>{error}</p>")),
            Ok((request, LinkGrant { session, allows, .. })) => {
                let verb = if allows { "Allow" } else { "Deny" };
                let mut body = request_html(&session, &request);
                let _ = write!(
                    body,
                    "<form method=\"post\"><input type=\"hidden\" name=\"token\" value=\"{}\"><button>{verb}</button></form>",
                    escape(token)
                );
                page(StatusCode::OK, &format!("{verb} this?"), &body)
            }
        }
    }

    /// Answers the request of a link.
    pub(super) async fn answer(&self, manager: &ProxyManager, token: &str) -> Response {
        match self.try_answer(manager, token).await {
            Ok(true) => page(StatusCode::OK, "Allowed", "<p>The agent goes on.</p>"),
            Ok(false) => page(StatusCode::OK, "Denied", "<p>The agent was told.</p>"),
            Err(error) => page(error.status(), "Nothing was answered", &format!("<p>{error}</p>")),
        }
    }

    async fn try_answer(&self, manager: &ProxyManager, token: &str) -> Result<bool, LinkError> {
        let now = SystemTime::now();
        let grant = self.parse(token, now)?;
        open_request(manager, &grant)?;
        if !self.consume(token, &grant, now) {
            return Err(LinkError::Used);
        }
        let session = manager.session(&grant.session).map_err(|_| LinkError::Used)?;
        let answer = if grant.allows { PermissionAnswer::Allow } else { PermissionAnswer::Deny };
        let answered = session.respond_permission_as(LINK_ACTOR, &grant.request, answer).await;
        answered.map(|()| grant.allows).map_err(|error| {
            tracing::warn!(session = %grant.session, error = %ErrorChain(&error), "failed to answer a permission by a link");
            LinkError::Refused
        })
    }
}

/// Returns the request of a link, while it is open.
fn open_request(manager: &ProxyManager, grant: &LinkGrant) -> Result<OpenPermission, LinkError> {
    let session = manager.session(&grant.session).map_err(|_| LinkError::Used)?;
    let mut open = session.info().open_permissions.into_iter();
    open.find(|open| open.id == grant.request && digest(open) == grant.digest).ok_or(LinkError::Used)
}

fn digest(request: &OpenPermission) -> String {
    URL_SAFE_NO_PAD.encode(&Sha256::digest(serde_json::to_vec(request).unwrap_or_default())[..16])
}

/// Formats all that an answer decides on.
fn request_html(session: &SessionId, request: &OpenPermission) -> String {
    let text = |text: &str| escape(&printable(text, false));
    let OpenPermission { tool, title, .. } = request;
    let mut body = format!("<p>Session {} asks to use {}: {}</p>", text(session.as_str()), text(tool), text(title));
    let details = request.details();
    if !details.is_empty() {
        let _ = write!(body, "<pre>{}</pre>", escape(&details.join("\n")));
    }
    body
}

/// Page of a server without links.
pub(super) fn unknown_link() -> Response {
    page(StatusCode::NOT_FOUND, "Nothing to answer", &format!("<p>{}</p>", LinkError::Unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> OpenPermission {
        OpenPermission {
            id: "permission-1".into(),
            title: "ls …\u{202e}".into(),
            tool: "<shell>".into(),
            kind: "execute".into(),
            command: Some("ls\nrm -rf <all>\u{1b}[1A".into()),
            paths: vec!["/etc/passwd".into()],
            input: ipc_protocol::Json::new(r#"{"content":"root::0"}"#).expect("JSON"),
            options: Vec::new(),
        }
    }

    #[test]
    fn a_link_is_one_of_ours_until_it_expires() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("links.key");
        let open = |others: Option<&PermissionLinks>| {
            PermissionLinks::open(&file, "https://agents.example".into(), Duration::from_secs(60), others)
                .expect("opened")
        };
        let (links, now) = (open(None), SystemTime::now());
        let session: SessionId = "s-1".parse().expect("an id");
        let LinkPair { allow, deny } = links.create(&session, &request(), now);
        let token = |link: &str| link.split_once("/v1/permission-link?token=").expect("a link").1.to_owned();
        let (allow, deny) = (token(&allow), token(&deny));
        assert_ne!(allow, deny);
        assert!(links.parse(&allow, now).expect("ours").allows && !links.parse(&deny, now).expect("ours").allows);
        // After a restart as well.
        assert!(open(None).parse(&allow, now).is_ok());
        assert_eq!(links.parse(&allow, now + Duration::from_secs(61)), Err(LinkError::Expired));
        let (grant, _) = allow.split_once('.').expect("two parts");
        let (_, signature) = deny.split_once('.').expect("two parts");
        for wrong in ["", "x", &format!("{grant}.{signature}"), &format!("{grant}."), &allow[1..]] {
            assert_eq!(links.parse(wrong, now), Err(LinkError::Unknown), "{wrong}");
        }
        let grant = links.parse(&allow, now).expect("ours");
        assert!(links.consume(&allow, &grant, now) && !links.consume(&allow, &grant, now));
        assert_eq!(links.parse(&allow, now), Err(LinkError::Used));
        // With another configuration, too.
        assert_eq!(open(Some(&links)).parse(&allow, now), Err(LinkError::Used));
    }

    #[test]
    fn all_that_is_asked_for_is_on_the_page() {
        assert_eq!(
            request_html(&"s-1".parse().expect("an id"), &request()),
            "<p>Session s-1 asks to use &lt;shell&gt;: ls …\\u{202e}</p><pre>command  ls\n         rm -rf &lt;all&gt;\\u{1b}[1A\n\
             path  /etc/passwd\ncontent  root::0</pre>"
        );
    }
}
