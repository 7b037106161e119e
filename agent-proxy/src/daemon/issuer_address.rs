//! Keys of an OpenID Connect issuer from its address.

use std::{io, net::IpAddr, path::Path, sync::Arc, time::Duration};

use hyper::{Request, StatusCode, header};
use proxy_server::{KeyFetch, ProblemDetails};

use super::http_address::HttpAddress;
use crate::serve_config::is_address;

/// Time for a fetch.
const FETCH_TIME: Duration = Duration::from_secs(10);
/// Longest answer.
const MAX_KEYS_TEXT: usize = 256 << 10;

/// Address of an issuer's keys.
#[derive(Clone)]
pub(super) struct IssuerAddress(HttpAddress);

impl IssuerAddress {
    /// Parses the value of `--oidc-keys`; `None` for one that is a file.
    ///
    /// # Errors
    /// `usage` for an address that keys cannot be taken from; `failed` without any certificate that is trusted.
    pub(super) fn parse(value: &Path) -> Result<Option<Self>, ProblemDetails> {
        let Some(text) = value.to_str().filter(|text| is_address(text)) else { return Ok(None) };
        let wrong = |why: &str| ProblemDetails::usage(format!("--oidc-keys {text}: {why}"));
        let address = HttpAddress::parse(text).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => wrong(&error.to_string()),
            _ => ProblemDetails::failed(format!("--oidc-keys: {error}; or name a file of the issuer's keys")),
        })?;
        let is_local = address.host == "localhost" || address.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        if address.tls.is_none() && !is_local {
            return Err(wrong("keys of another machine come by https: whoever is on the way could put others there"));
        }
        Ok(Some(Self(address)))
    }

    /// Returns the address as text.
    pub(super) fn text(&self) -> String {
        self.0.uri.to_string()
    }

    /// Makes what fetches the keys. It blocks, and is for a thread of the runtime's that may.
    pub(super) fn fetch(self) -> KeyFetch {
        Arc::new(move || tokio::runtime::Handle::current().block_on(self.get()))
    }

    async fn get(&self) -> io::Result<Vec<u8>> {
        let request = Request::builder().header(header::ACCEPT, "application/json");
        let (status, body) = self.0.send(request, Vec::new(), MAX_KEYS_TEXT, FETCH_TIME).await?;
        if status != StatusCode::OK {
            let advice =
                "name the address of the keys themselves, the `jwks_uri` of its `/.well-known/openid-configuration`";
            return Err(io::Error::other(format!("the answer is {status}: {advice}")));
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_keys_may_come_from() {
        let parse = |text: &str| IssuerAddress::parse(Path::new(text));
        for file in ["jwks.json", "/etc/keys/https://x", "httpd.json"] {
            assert!(parse(file).expect("a file").is_none(), "{file}");
        }
        for (text, host, port) in [
            ("http://127.0.0.1:8081/keys", "127.0.0.1", 8081),
            ("http://[::1]/keys?x=1", "::1", 80),
            ("http://localhost/keys", "localhost", 80),
        ] {
            let address = parse(text).expect("usable").expect("an address");
            let HttpAddress { host: found, port: number, tls, .. } = &address.0;
            assert_eq!((found.as_str(), *number, tls.is_none()), (host, port, true), "{text}");
        }
        for wrong in
            ["http://id.example/keys", "http://10.0.0.1/keys", "https://u:p@id.example/", "https://", "http://a b/"]
        {
            let problem = parse(wrong).err().expect("refused");
            assert!(problem.kind == "usage" && problem.detail.contains(wrong), "{wrong}: {problem:?}");
        }
    }
}
