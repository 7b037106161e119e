//! Address of another server, and requests to it over connections of their own.

use std::{io, sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, StatusCode, Uri, body::Bytes, client::conn::http1::handshake, header, http::request};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::daemon_address::client_config;

/// Address by `http` or `https`.
#[derive(Clone)]
pub(super) struct HttpAddress {
    pub(super) uri: Uri,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: Option<TlsConnector>,
}

impl HttpAddress {
    /// Parses an address.
    ///
    /// # Errors
    /// It is none, or has a login in it; this system trusts nobody.
    pub(super) fn parse(text: &str) -> io::Result<Self> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let uri: Uri = text.parse().map_err(|error| wrong(format!("it is no address: {error}")))?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let host = authority.map(|authority| authority.host().trim_matches(['[', ']']).to_owned());
        let host =
            host.filter(|host| !host.is_empty()).ok_or_else(|| wrong("it names no host, or a password".into()))?;
        let tls = match uri.scheme_str() {
            Some("https") => Some(TlsConnector::from(Arc::new(client_config()?))),
            Some("http") => None,
            _ => return Err(wrong("it begins with neither http:// nor https://".into())),
        };
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        Ok(Self { uri, host, port, tls })
    }

    /// Sends a request. Returns status and body of the answer. It follows no redirection.
    ///
    /// # Errors
    /// No answer in time, or one that is longer than `most` bytes.
    pub(super) async fn send(
        &self,
        request: request::Builder,
        body: Vec<u8>,
        most: usize,
        within: Duration,
    ) -> io::Result<(StatusCode, Vec<u8>)> {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        let request = request.uri(path).header(header::HOST, host).body(Full::new(Bytes::from(body)));
        let request = request.map_err(io::Error::other)?;
        let send = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            match &self.tls {
                None => exchange(stream, request, most).await,
                Some(tls) => {
                    let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
                    exchange(tls.connect(name, stream).await?, request, most).await
                }
            }
        };
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {within:?}"));
        timeout(within, send).await.map_err(late)?
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
    most: usize,
) -> io::Result<(StatusCode, Vec<u8>)> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let answer = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), most).collect().await.map_err(io::Error::other)?;
        Ok((status, body.to_bytes().to_vec()))
    };
    let answer = answer.await;
    connection.abort();
    answer
}
