//! Login of a page: a link that works once becomes a cookie, and the cookie is a session of the server.
//!
//! Link and cookie have 256 random bits; the server keeps their hashes alone, in memory.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use axum::http::{HeaderMap, HeaderValue, header};

use super::{
    Identity,
    audit::lock,
    token_file::{hash, random_text},
};
use crate::ProblemDetails;

/// Time in which a link has to be used.
const LINK_LIFE: Duration = Duration::from_secs(15 * 60);
/// Time after which a page has to log in again.
pub(crate) const LOGIN_LIFE: Duration = Duration::from_secs(12 * 60 * 60);
/// Links and logins at once, each.
const MAX_LOGINS: usize = 1000;
/// Used and expired links that are remembered, for whoever follows one again.
const MAX_SPENT: usize = 10_000;
/// What the cookie's name begins with; its port follows, since cookies of a host go to all of its ports.
const COOKIE: &str = "agent_proxy_login";
/// Path of the link.
pub(crate) const LOGIN_PATH: &str = "/login";

/// An identity until a time.
#[derive(Clone, Debug)]
struct Grant {
    identity: Identity,
    until: Instant,
}

/// Reason why a link of this server does nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpentLink {
    Used,
    Expired,
}

#[derive(Debug, Default)]
struct Grants {
    links: HashMap<String, Grant>,
    /// Links that were used or are too old, and until when that is known.
    spent: HashMap<String, (SpentLink, Instant)>,
    logins: HashMap<String, Grant>,
    /// Beginnings of links: `http://127.0.0.1:8480`.
    addresses: Vec<String>,
}

/// Links and logins of pages. A clone has the same.
#[derive(Clone, Debug, Default)]
pub struct LoginStore(Arc<Mutex<Grants>>);

impl Grants {
    /// Takes out the links that are too old, and forgets those that were for long.
    fn expire(&mut self, now: Instant) {
        self.spent.retain(|_, (_, until)| *until > now);
        let expired = self.links.extract_if(|_, grant| grant.until <= now).map(|(link, _)| link);
        let expired: Vec<String> = expired.collect();
        expired.into_iter().for_each(|link| self.spend(link, SpentLink::Expired, now));
    }

    fn spend(&mut self, link: String, why: SpentLink, now: Instant) {
        if self.spent.len() < MAX_SPENT {
            self.spent.insert(link, (why, now + LOGIN_LIFE));
        }
    }
}

/// Link that works once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginLink {
    /// The link, at each address of the server.
    pub urls: Vec<String>,
    /// End of its life.
    pub expires_at: SystemTime,
}

impl LoginStore {
    /// Sets where the server listens: `http://127.0.0.1:8480`.
    pub fn set_addresses(&self, addresses: Vec<String>) {
        lock(&self.0).addresses = addresses;
    }

    /// Creates a link for an identity. It works once, within 15 minutes.
    ///
    /// # Errors
    /// The system has no random bytes; there are as many links as there may be; the server listens nowhere.
    pub fn create_link(&self, identity: Identity) -> Result<LoginLink, ProblemDetails> {
        let code = random().map_err(|error| ProblemDetails::failed(format!("making a link failed: {error}")))?;
        let mut grants = lock(&self.0);
        if grants.addresses.is_empty() {
            return Err(ProblemDetails::new(
                "unsupported",
                "the server has no address for a browser: start it with `serve --listen 127.0.0.1:8480`",
            ));
        }
        let now = Instant::now();
        grants.expire(now);
        if grants.links.len() >= MAX_LOGINS {
            return Err(ProblemDetails::new(
                "overloaded",
                format!("{MAX_LOGINS} login links wait to be used: use one"),
            ));
        }
        grants.links.insert(hash(&code), Grant { identity, until: now + LINK_LIFE });
        let urls = grants.addresses.iter().map(|address| format!("{address}{LOGIN_PATH}?code={code}")).collect();
        Ok(LoginLink { urls, expires_at: SystemTime::now() + LINK_LIFE })
    }

    /// Uses a link up, and returns the cookie's value.
    pub(super) fn log_in(&self, code: &str) -> Result<String, ProblemDetails> {
        let value = random().map_err(|error| ProblemDetails::failed(format!("logging in failed: {error}")))?;
        let mut grants = lock(&self.0);
        let now = Instant::now();
        grants.logins.retain(|_, grant| grant.until > now);
        if grants.logins.len() >= MAX_LOGINS {
            return Err(ProblemDetails::new("overloaded", format!("{MAX_LOGINS} pages are logged in: log one out")));
        }
        grants.expire(now);
        let link = hash(code);
        let Some(grant) = grants.links.remove(&link) else {
            let why = match grants.spent.get(&link) {
                Some((SpentLink::Used, _)) => "this login link was used already, and each works once",
                Some((SpentLink::Expired, _)) => "this login link is too old: each has to be used within 15 minutes",
                None => "this login link is not known: it is not whole, or of a daemon that has ended",
            };
            return Err(ProblemDetails::new("unauthorized", format!("{why}; `agent-proxy login-link` prints another")));
        };
        grants.spend(link, SpentLink::Used, now);
        grants.logins.insert(hash(&value), Grant { until: now + LOGIN_LIFE, ..grant });
        Ok(value)
    }

    /// Returns who has logged in with one of these cookies.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Option<Identity> {
        let grants = lock(&self.0);
        let now = Instant::now();
        let known = |value: &str| grants.logins.get(&hash(value)).filter(|grant| grant.until > now);
        cookies(headers).find_map(|(_, value)| known(value)).map(|grant| grant.identity.clone())
    }

    /// Ends the logins of these cookies, and returns the names of the cookies.
    pub(crate) fn log_out(&self, headers: &HeaderMap) -> Vec<String> {
        let mut grants = lock(&self.0);
        cookies(headers)
            .filter_map(|(name, value)| grants.logins.remove(&hash(value)).map(|_| name.to_owned()))
            .collect()
    }
}

/// Iterates over our cookies.
fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let values = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = values.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| name.starts_with(COOKIE))
}

/// Returns the cookie that logs a page in, for the host that it asked.
pub(super) fn set_cookie(value: &str, host: &str, is_secure: bool) -> Option<HeaderValue> {
    let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| port.parse::<u16>().is_ok());
    let (port, secure) = (port.unwrap_or("0"), if is_secure { "; Secure" } else { "" });
    let life = LOGIN_LIFE.as_secs();
    let text = format!("{COOKIE}_{port}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={life}{secure}");
    HeaderValue::from_str(&text).ok()
}

/// Returns the header that removes a cookie.
pub(crate) fn remove_cookie(name: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("{name}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0")).ok()
}

fn random() -> io::Result<String> {
    random_text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;

    fn store() -> LoginStore {
        let store = LoginStore::default();
        store.set_addresses(vec!["http://127.0.0.1:8480".into()]);
        store
    }

    fn code(link: &LoginLink) -> &str {
        link.urls[0].strip_prefix("http://127.0.0.1:8480/login?code=").expect("a link")
    }

    fn cookie(value: &str) -> HeaderMap {
        let text = format!("other=1; {COOKIE}_8480={value}");
        HeaderMap::from_iter([(header::COOKIE, text.parse().expect("a value"))])
    }

    #[test]
    fn a_link_works_once_and_its_cookie_until_the_logout() {
        let store = store();
        let link = store.create_link(Identity::new("ada", Role::Read)).expect("a link");
        let value = store.log_in(code(&link)).expect("logged in");
        let used = store.log_in(code(&link)).expect_err("used up");
        assert!(used.status == 401 && used.detail.contains("was used already"), "{used:?}");
        let unknown = store.log_in("wrong").expect_err("unknown");
        assert!(unknown.status == 401 && unknown.detail.contains("is not known"), "{unknown:?}");
        assert_eq!(store.identify(&cookie(&value)).expect("known").name, "ada");
        assert_eq!(store.identify(&cookie("wrong")), None);
        assert_eq!(store.identify(&cookie(code(&link))), None, "a link is no cookie");
        let text = format!("{store:?}");
        assert!(!text.contains(&value) && !text.contains(code(&link)), "hashes alone are kept");
        assert_eq!(store.log_out(&cookie(&value)), ["agent_proxy_login_8480"]);
        assert_eq!(store.identify(&cookie(&value)), None);
    }

    #[test]
    fn what_is_too_old_is_nothing() {
        let store = store();
        let link = store.create_link(Identity::new("ada", Role::Read)).expect("a link");
        let late =
            |grants: &mut HashMap<String, Grant>| grants.values_mut().for_each(|grant| grant.until = Instant::now());
        late(&mut lock(&store.0).links);
        let expired = store.log_in(code(&link)).expect_err("too old");
        assert!(expired.status == 401 && expired.detail.contains("is too old"), "{expired:?}");
        let link = store.create_link(Identity::new("ada", Role::Read)).expect("a link");
        let value = store.log_in(code(&link)).expect("logged in");
        late(&mut lock(&store.0).logins);
        assert_eq!(store.identify(&cookie(&value)), None);
    }

    #[test]
    fn a_cookie_is_out_of_reach_of_scripts_and_other_sites() {
        let text = |host, secure| set_cookie("v", host, secure).expect("a header").to_str().expect("text").to_owned();
        let plain = text("127.0.0.1:8480", false);
        assert_eq!(plain, "agent_proxy_login_8480=v; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200");
        assert!(text("agents.example", true).ends_with("; Secure"));
    }

    #[test]
    fn a_server_without_an_address_has_no_links() {
        assert_eq!(
            LoginStore::default().create_link(Identity::new("x", Role::Read)).expect_err("none").kind,
            "unsupported"
        );
    }
}
