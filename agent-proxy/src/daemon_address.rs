//! Address of a daemon, as its clients know it: the local socket, or a URL with a token.

use std::{
    ffi::OsString,
    fmt, io,
    net::IpAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use agents::Secret;
use api_types::ProblemDetails;
use hyper::{Uri, header::HeaderValue};
use interprocess::local_socket::{GenericFilePath, ToFsName, tokio::Stream, traits::tokio::Stream as _};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, Error as TlsError, RootCertStore, crypto::ring::default_provider, pki_types::ServerName},
};

use crate::{
    config_dir::{directory_path, first_token},
    socket_path::SocketPath,
};

/// Time for a connection over the network, with its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Silence of a connection over the network after which, and pause with which, it is asked whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Such questions without an answer after which it is not.
const KEEPALIVES: u32 = 4;

/// Longest token, with the white space around it, in bytes: one of an issuer may be long.
const MAX_TOKEN: usize = 64 * 1024;

/// Where a daemon is reached.
#[derive(Clone, Debug)]
pub(crate) enum DaemonAddress {
    /// On this machine, as the same user.
    Socket(SocketPath),
    /// Over the network, as the holder of a token.
    Network(Arc<NetworkAddress>),
}

/// URL of a daemon, and the token for it.
#[derive(Debug)]
pub(crate) struct NetworkAddress {
    /// `https://agents.example:8443`
    base: String,
    /// Name or address, without brackets.
    name: String,
    /// Name or address, with the port unless it is the scheme's own.
    authority: String,
    port: u16,
    /// Path in front of those of the API, without a slash at its end.
    prefix: String,
    is_encrypted: bool,
    token: Secret,
}

impl From<SocketPath> for DaemonAddress {
    fn from(socket: SocketPath) -> Self {
        Self::Socket(socket)
    }
}

impl fmt::Display for DaemonAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(socket) => socket.path.display().fmt(f),
            Self::Network(network) => write!(f, "{}{}", network.base, network.prefix),
        }
    }
}

/// Returns the URL of flags or environment. `--socket` wins over `AGENT_PROXY_URL`, as what is said now does over what is set.
fn given_url(flags: AddressFlags<'_>, var: &impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    let of_environment = || flags.socket.is_none().then(|| var("AGENT_PROXY_URL")).flatten();
    flags.url.map(OsString::from).or_else(of_environment)
}

/// Returns a variable of this process's environment, unless it is empty.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// What the command line says of the address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddressFlags<'a> {
    pub(crate) socket: Option<&'a Path>,
    pub(crate) url: Option<&'a str>,
    pub(crate) token_file: Option<&'a Path>,
    pub(crate) config_dir: Option<&'a Path>,
}

impl DaemonAddress {
    /// Finds the address from the flags, else from this process's environment. Reads the token.
    ///
    /// # Errors
    /// `usage`: says what does not fit.
    pub(crate) fn find(flags: AddressFlags<'_>) -> Result<Self, ProblemDetails> {
        Self::from_parts(flags, variable)
    }

    /// Returns true if flags or environment name a URL, whether or not it can be used.
    #[cfg(feature = "engine")]
    pub(crate) fn is_url_given(flags: AddressFlags<'_>) -> bool {
        given_url(flags, &variable).is_some()
    }

    fn from_parts(flags: AddressFlags<'_>, var: impl Fn(&str) -> Option<OsString>) -> Result<Self, ProblemDetails> {
        let url = given_url(flags, &var).map(OsString::into_string).transpose();
        let Some(url) = url.map_err(|_| ProblemDetails::usage("AGENT_PROXY_URL is no text"))? else {
            let socket = SocketPath::find(flags.socket);
            return match socket.unusable() {
                Some(why) => Err(ProblemDetails::usage(why)),
                None => Ok(Self::Socket(socket)),
            };
        };
        let network = parse(&url)?;
        let given = flags.token_file.map(Path::to_owned).or_else(|| var("AGENT_PROXY_TOKEN_FILE").map(PathBuf::from));
        // The first token of this machine goes to nobody else.
        let first = || {
            is_loopback(&network.name).then(|| directory_path(flags.config_dir)).flatten().map(|dir| first_token(&dir))
        };
        let file = given.or_else(first).ok_or_else(|| {
            let advice = "give the file with one as --token-file (`agent-proxy tokens create NAME`, where its daemon runs, makes a token)";
            ProblemDetails::usage(format!("{url} needs a token: {advice}"))
        })?;
        Ok(Self::Network(Arc::new(NetworkAddress { token: read_token(&file)?, ..network })))
    }

    /// Connects.
    ///
    /// # Errors
    /// `no-daemon`: says where, and why not.
    pub(crate) async fn connect(&self) -> Result<DaemonStream, ProblemDetails> {
        match self {
            Self::Socket(socket) => connect_locally(socket).await.map(DaemonStream::Local),
            Self::Network(network) => {
                let failed = |why: &dyn fmt::Display, advice: &str| {
                    ProblemDetails::new("no-daemon", format!("cannot connect to {self}: {why}; {advice}"))
                };
                let is_running = "is `agent-proxy serve --listen` running there?";
                match tokio::time::timeout(CONNECT_TIMEOUT, network.connect()).await {
                    Ok(connected) => connected.map_err(|error| match is_certificate_refused(&error) {
                        true => {
                            failed(&error, "name the certificate of its authority with SSL_CERT_FILE (docs/network.md)")
                        }
                        false => failed(&error, is_running),
                    }),
                    Err(_) => Err(failed(&format!("no answer within {CONNECT_TIMEOUT:?}"), is_running)),
                }
            }
        }
    }

    /// Returns the host that a request names.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Socket(_) => "agent-proxy",
            Self::Network(network) => &network.authority,
        }
    }

    /// Returns the target of a request for a path of the API.
    pub(crate) fn target(&self, path: &str) -> String {
        match self {
            Self::Socket(_) => path.to_owned(),
            Self::Network(network) => format!("{}{path}", network.prefix),
        }
    }

    /// Returns the header with the token.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        let Self::Network(network) = self else { return None };
        // It was checked when it was read.
        let mut value = HeaderValue::from_str(&format!("Bearer {}", network.token.expose())).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl NetworkAddress {
    async fn connect(&self) -> io::Result<DaemonStream> {
        let stream = TcpStream::connect((self.name.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        // A reader has to see that the other end is gone, or the way to it.
        set_socket_keepalive(&stream, true)?;
        set_tcp_keepidle(&stream, KEEPALIVE)?;
        set_tcp_keepintvl(&stream, KEEPALIVE)?;
        set_tcp_keepcnt(&stream, KEEPALIVES)?;
        if !self.is_encrypted {
            return Ok(DaemonStream::Plain(stream));
        }
        let name = ServerName::try_from(self.name.clone()).map_err(io::Error::other)?;
        let config = tokio::task::spawn_blocking(client_config).await.map_err(io::Error::other)??;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        Ok(DaemonStream::Encrypted(Box::new(stream)))
    }
}

/// Returns true if somebody answers there, whose certificate is not trusted.
fn is_certificate_refused(error: &io::Error) -> bool {
    let tls = error.get_ref().and_then(|error| error.downcast_ref::<TlsError>());
    matches!(tls, Some(TlsError::InvalidCertificate(_)))
}

/// Trusts what this system trusts. Blocks for some milliseconds.
///
/// # Errors
/// It trusts nobody.
pub(crate) fn client_config() -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(io::Error::other(format!(
            "this system has no certificates of authorities{why}: name a file with SSL_CERT_FILE"
        )));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

async fn connect_locally(socket: &SocketPath) -> Result<Stream, ProblemDetails> {
    if let Some(why) = socket.unusable().or_else(|| socket.untrusted()) {
        return Err(ProblemDetails::new("no-daemon", why));
    }
    let path = &socket.path;
    let stream = match path.as_path().to_fs_name::<GenericFilePath>() {
        Ok(name) => Stream::connect(name).await,
        Err(error) => Err(error),
    };
    let stream = stream.map_err(|error| {
        let path = path.display();
        ProblemDetails::new(
            "no-daemon",
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    format!("no daemon answers on {path}: start one with `agent-proxy serve`")
                }
                _ => format!("cannot connect to {path}: {error}; is `agent-proxy serve` running, and yours?"),
            },
        )
    })?;
    #[cfg(feature = "engine")]
    check_owner(socket, &stream)?;
    Ok(stream)
}

/// Checks that a user's daemon listens, where the socket is to be of one.
#[cfg(feature = "engine")]
fn check_owner(socket: &SocketPath, Stream::UdSocket(connected): &Stream) -> Result<(), ProblemDetails> {
    use nix::sys::socket::{getsockopt, sockopt};

    // Of the process that listens, which a link in the socket's place may lead to.
    let listens = getsockopt(connected, sockopt::PeerCredentials).map(|peer| peer.uid());
    match socket.owner {
        Some(owner) if listens != Ok(owner) => {
            let detail = format!("who listens on {} is not the daemon of user {owner}", socket.path.display());
            Err(ProblemDetails::new("no-daemon", detail))
        }
        _ => Ok(()),
    }
}

/// Reads a URL; the token is missing yet.
fn parse(url: &str) -> Result<NetworkAddress, ProblemDetails> {
    let wrong = |why: &str| {
        ProblemDetails::usage(format!(
            "--url is {url:?}, and {why}: as in https://agents.example or http://127.0.0.1:8480"
        ))
    };
    let parsed: Uri = url.parse().map_err(|_| wrong("that is no URL"))?;
    let is_encrypted = match parsed.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(wrong("it has to begin with http:// or https://")),
    };
    let authority = parsed.authority().filter(|authority| !authority.host().is_empty());
    let authority = authority.ok_or_else(|| wrong("it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(wrong("a token or a password is not for a URL, but for the file --token-file"));
    }
    if parsed.query().is_some() {
        return Err(wrong("it may have no query"));
    }
    let name = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if !is_encrypted && !is_loopback(&name) {
        return Err(wrong("a token is not sent to another machine without TLS; use https, or a tunnel (ssh -L)"));
    }
    let port = authority.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
    let scheme = if is_encrypted { "https" } else { "http" };
    Ok(NetworkAddress {
        base: format!("{scheme}://{authority}"),
        authority: authority.as_str().to_owned(),
        name,
        port,
        prefix: parsed.path().trim_end_matches('/').to_owned(),
        is_encrypted,
        token: Secret::from(String::new()),
    })
}

fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Reads a token: the first word of a file.
fn read_token(file: &Path) -> Result<Secret, ProblemDetails> {
    let path = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| {
        ProblemDetails::usage(format!("reading the token from {path} failed: {error}; give --token-file"))
    })?;
    let token = text.split_whitespace().next().filter(|_| text.len() <= MAX_TOKEN).unwrap_or_default();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ProblemDetails::usage(format!(
            "{path} has no token: `agent-proxy tokens create NAME` prints one as its last line"
        )));
    }
    Ok(Secret::from(token.to_owned()))
}

/// Connection to a daemon.
#[derive(Debug)]
pub(crate) enum DaemonStream {
    Local(Stream),
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// Calls a method of the stream inside.
macro_rules! pinned {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            DaemonStream::Local(stream) => {
                let $inner = Pin::new(stream);
                $call
            }
            DaemonStream::Plain(stream) => {
                let $inner = Pin::new(stream);
                $call
            }
            DaemonStream::Encrypted(stream) => {
                let $inner = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for DaemonStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        pinned!(self, stream => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for DaemonStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        pinned!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pinned!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pinned!(self, stream => stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds an address with these flags and variables; its words, or those of the problem.
    fn find(flags: AddressFlags<'_>, vars: &[(&str, &str)]) -> Result<DaemonAddress, String> {
        let var = |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        DaemonAddress::from_parts(flags, var).map_err(|problem| problem.detail)
    }

    fn token_file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        std::fs::write(&file, text).expect("written");
        (directory, file)
    }

    fn elsewhere(token_file: &Path) -> AddressFlags<'_> {
        AddressFlags { url: Some("https://agents.example"), token_file: Some(token_file), ..AddressFlags::default() }
    }

    #[test]
    fn what_is_said_now_wins_over_the_environment() {
        let (_directory, file) = token_file(" agent_proxy_1234 \n");
        let file = file.to_str().expect("UTF-8");
        let vars = [("AGENT_PROXY_URL", "http://127.0.0.1:8480/agents/"), ("AGENT_PROXY_TOKEN_FILE", file)];
        let found = find(AddressFlags::default(), &vars).expect("an address");
        assert_eq!((found.to_string().as_str(), found.host()), ("http://127.0.0.1:8480/agents", "127.0.0.1:8480"));
        assert_eq!(found.target("/v1/health"), "/agents/v1/health");
        assert_eq!(found.authorization().expect("a token"), "Bearer agent_proxy_1234");
        assert!(!format!("{found:?} {:?}", found.authorization()).contains("1234"), "{found:?}");
        let flags = AddressFlags { url: Some("https://[::1]"), ..AddressFlags::default() };
        assert_eq!(find(flags, &vars).expect("an address").to_string(), "https://[::1]");
        let flags = AddressFlags { socket: Some(Path::new("/s")), ..AddressFlags::default() };
        let found = find(flags, &vars).expect("an address");
        assert_eq!((found.to_string().as_str(), found.host(), found.authorization()), ("/s", "agent-proxy", None));
        assert_eq!(found.target("/v1/health"), "/v1/health");
    }

    #[test]
    fn a_token_is_sent_to_nobody_who_should_not_have_it() {
        let (directory, file) = token_file("agent_proxy_1234");
        let flags =
            |url| AddressFlags { url: Some(url), config_dir: Some(directory.path()), ..AddressFlags::default() };
        for url in ["http://127.0.0.1:1", "http://localhost", "http://[::1]:1", "https://127.0.0.1"] {
            assert!(find(flags(url), &[]).is_ok(), "{url}");
        }
        for (url, why) in [
            ("https://agents.example", "--token-file"),
            ("http://agents.example", "without TLS"),
            ("http://10.0.0.1:8480", "without TLS"),
            ("http://localhost.example", "without TLS"),
            ("ftp://127.0.0.1", "http:// or https://"),
            ("127.0.0.1:8480", "http:// or https://"),
            ("https://me:secret@agents.example", "--token-file"),
            ("https://agents.example/?token=secret", "query"),
            ("https://", "no URL"),
        ] {
            let problem = find(flags(url), &[]).expect_err(url);
            assert!(problem.contains(why), "{url}: {problem}");
        }
        assert!(find(elsewhere(&file), &[]).is_ok());
        assert!(find(elsewhere(Path::new("/no/such/file")), &[]).expect_err("none").contains("/no/such/file"));
        for text in ["", "\n", "töken", "a\u{7}b"] {
            let (_directory, file) = token_file(text);
            assert!(find(elsewhere(&file), &[]).expect_err("no token").contains("has no token"), "{text:?}");
        }
    }
}
