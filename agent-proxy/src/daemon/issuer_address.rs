//! Keys of an OpenID Connect issuer from its address.

use std::{io, net::IpAddr, path::Path, sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, StatusCode, Uri, body::Bytes, client::conn::http1::handshake, header};
use hyper_util::rt::TokioIo;
use proxy_server::{KeyFetch, ProblemDetails};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::{daemon_address::client_config, serve_config::is_address};

/// Time for a fetch.
const FETCH_TIME: Duration = Duration::from_secs(10);
/// Longest answer.
const MAX_KEYS_TEXT: usize = 256 << 10;

/// Address of an issuer's keys.
#[derive(Clone)]
pub(super) struct IssuerAddress {
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
}

impl IssuerAddress {
    /// Parses the value of `--oidc-keys`; `None` for one that is a file.
    ///
    /// # Errors
    /// `usage` for an address that keys cannot be taken from; `failed` without any certificate that is trusted.
    pub(super) fn parse(value: &Path) -> Result<Option<Self>, ProblemDetails> {
        let Some(text) = value.to_str().filter(|text| is_address(text)) else { return Ok(None) };
        let wrong = |why: &str| ProblemDetails::usage(format!("--oidc-keys {text}: {why}"));
        let uri: Uri = text.parse().map_err(|error| wrong(&format!("it is no address: {error}")))?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let host = authority.map(|authority| authority.host().trim_matches(['[', ']']).to_owned());
        let host = host.filter(|host| !host.is_empty()).ok_or_else(|| wrong("it names no host, or a password"))?;
        let is_local = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        let tls = match uri.scheme_str() {
            Some("https") => Some(connector()?),
            _ if is_local => None,
            _ => {
                return Err(wrong(
                    "keys of another machine come by https: whoever is on the way could put others there",
                ));
            }
        };
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        Ok(Some(Self { uri, host, port, tls }))
    }

    /// Returns the address as text.
    pub(super) fn text(&self) -> String {
        self.uri.to_string()
    }

    /// Makes what fetches the keys. It blocks, and is for a thread of the runtime's that may.
    pub(super) fn fetch(self) -> KeyFetch {
        Arc::new(move || tokio::runtime::Handle::current().block_on(self.get()))
    }

    async fn get(&self) -> io::Result<Vec<u8>> {
        let get = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            match &self.tls {
                None => self.ask(stream).await,
                Some(tls) => {
                    let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
                    self.ask(tls.connect(name, stream).await?).await
                }
            }
        };
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {FETCH_TIME:?}"));
        timeout(FETCH_TIME, get).await.map_err(late)?
    }

    async fn ask(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> io::Result<Vec<u8>> {
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let connection = tokio::spawn(connection);
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        let request = Request::get(path).header(header::HOST, host).header(header::ACCEPT, "application/json");
        let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(io::Error::other)?;
            if response.status() != StatusCode::OK {
                let advice = "name the address of the keys themselves, the `jwks_uri` of its `/.well-known/openid-configuration`";
                return Err(io::Error::other(format!("the answer is {}: {advice}", response.status())));
            }
            let body = Limited::new(response.into_body(), MAX_KEYS_TEXT).collect().await;
            Ok(body.map_err(io::Error::other)?.to_bytes().to_vec())
        };
        let answer = answer.await;
        connection.abort();
        answer
    }
}

/// Trusts the certificates that this system trusts.
fn connector() -> Result<TlsConnector, ProblemDetails> {
    let config = client_config().map_err(|error| {
        ProblemDetails::failed(format!("--oidc-keys: {error}; or name a file of the issuer's keys"))
    })?;
    Ok(TlsConnector::from(Arc::new(config)))
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
            assert_eq!((address.host.as_str(), address.port, address.tls.is_none()), (host, port, true), "{text}");
        }
        for wrong in
            ["http://id.example/keys", "http://10.0.0.1/keys", "https://u:p@id.example/", "https://", "http://a b/"]
        {
            let problem = parse(wrong).err().expect("refused");
            assert!(problem.kind == "usage" && problem.detail.contains(wrong), "{wrong}: {problem:?}");
        }
    }
}
