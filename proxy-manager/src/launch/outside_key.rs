//! Key of a model that stays outside of its session.
//!
//! In a session with a network of its own, requests to the model go through our proxy, which puts the key into them. The agent is started with
//! another model configuration: a stand-in for the key, and an address of that proxy.

use agents::{AgentSpec, ModelConfig};
use ipc_protocol::{AgentSessionConfig, MODEL_PORT, ModelUpstream, NetworkAccess, SessionId};

use super::invalid;
use crate::error::{Error, Result};

/// Addresses of providers, for model configurations that name none.
const PROVIDERS: [(&str, &str); 4] = [
    ("anthropic", "https://api.anthropic.com/v1"),
    ("openai", "https://api.openai.com/v1"),
    ("google", "https://generativelanguage.googleapis.com/v1beta"),
    ("gemini", "https://generativelanguage.googleapis.com/v1beta"),
];

/// What the agent gets, and what its proxy gets.
#[derive(Clone, Debug)]
pub(super) struct OutsideKey {
    /// Model configuration for the agent.
    pub(super) stand_in: ModelConfig,
    /// `None` where the network is off.
    pub(super) upstream: Option<ModelUpstream>,
}

/// Plans it, for a session with a network of its own and a model with a key.
///
/// # Errors
/// [`Error::InvalidConfig`] and [`Error::Unsupported`], where the key could not stay outside.
pub(super) fn plan(
    model: Option<&ModelConfig>,
    spec: &AgentSpec,
    config: &AgentSessionConfig,
) -> Result<Option<OutsideKey>> {
    let network = config.sandbox.network.as_ref().filter(|network| config.sandbox.is_on() && network.is_own());
    let (Some(model), Some(network)) = (model, network) else { return Ok(None) };
    let Some(key) = &model.key else { return Ok(None) };
    if spec.family().is_none() && !spec.env.0.values().any(|value| value.contains("{base_url}")) {
        let operation =
            "have the key of its model outside of its sandbox: its row has no {base_url} in `env`".to_owned();
        return Err(Error::Unsupported { agent: spec.id.clone(), operation });
    }
    let default = || PROVIDERS.iter().find(|(name, _)| *name == model.provider).map(|(_, url)| *url);
    let url = model.base_url.as_deref().or_else(default).ok_or_else(|| {
        let reason =
            format!("{:?} has no base_url, by which the sandbox's proxy would find the model: give it one", model.name);
        invalid("modelConfig", reason)
    })?;
    let placeholder = format!("sk-agent-proxy-{}", SessionId::mint());
    let upstream = parse(url, &placeholder, key.expose()).ok_or_else(|| {
        let reason = format!(
            "the key of {:?} cannot stay outside of the sandbox: its address is neither https://HOST/… nor http://127.0.0.1/…",
            model.name
        );
        invalid("modelConfig", reason)
    })?;
    let stand_in = ModelConfig {
        base_url: Some(format!("http://127.0.0.1:{MODEL_PORT}{}", upstream.path)),
        key: Some(placeholder.into()),
        ..model.clone()
    };
    let upstream = matches!(network, NetworkAccess::Allow(_)).then_some(upstream);
    Ok(Some(OutsideKey { stand_in, upstream }))
}

/// Reads an address. `None` for what is neither encrypted nor on this machine, or has a login or a query.
fn parse(url: &str, placeholder: &str, key: &str) -> Option<ModelUpstream> {
    let (scheme, rest) = url.split_once("://")?;
    let is_encrypted = match scheme.to_ascii_lowercase().as_str() {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if authority.contains(['@', '?', '#']) || path.contains(['?', '#']) || url.contains(char::is_whitespace) {
        return None;
    }
    let usual = if is_encrypted { 443 } else { 80 };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if host.ends_with(']') || !host.contains(':') => (host, port.parse().ok()?),
        _ => (authority, usual),
    };
    let host = ipc_protocol::normal_host(host.trim_start_matches('[').trim_end_matches(']'));
    let is_local = ["localhost", "127.0.0.1", "::1"].contains(&host.as_str());
    if host.is_empty() || port == 0 || !is_encrypted && !is_local {
        return None;
    }
    let path = path.trim_end_matches('/').to_owned();
    let (placeholder, key) = (placeholder.to_owned(), key.to_owned());
    Some(ModelUpstream { is_encrypted, host, port, path, placeholder, key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_encrypted_or_on_this_machine() {
        let parsed =
            |url: &str| parse(url, "", "").map(|found| (found.is_encrypted, found.host, found.port, found.path));
        let of =
            |is_encrypted, host: &str, port, path: &str| Some((is_encrypted, host.to_owned(), port, path.to_owned()));
        assert_eq!(parsed("https://API.example.com/v1/"), of(true, "api.example.com", 443, "/v1"));
        assert_eq!(parsed("https://api.example.com:8443"), of(true, "api.example.com", 8443, ""));
        assert_eq!(parsed("http://127.0.0.1:9/a/b"), of(false, "127.0.0.1", 9, "/a/b"));
        assert_eq!(parsed("http://[::1]:9"), of(false, "::1", 9, ""));
        for url in
            ["http://api.example.com/v1", "ftp://127.0.0.1", "https://a:b@c/v1", "https:///v1", "https://a/v1?x", "a"]
        {
            assert_eq!(parsed(url), None, "{url}");
        }
        for (provider, url) in PROVIDERS {
            assert!(parsed(url).is_some(), "{provider}");
        }
    }
}
