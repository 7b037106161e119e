//! The session's model: requests to a port of the session's network get the key on the way, so that nobody in the session has it.
//!
//! The key takes the place of a stand-in, and in headers for keys alone: another header might come back in an answer.

use std::time::Instant;

use ipc_protocol::{ModelUpstream, ProcessId};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
#[cfg(feature = "tls")]
use {
    std::{io, sync::Arc},
    tokio::sync::OnceCell,
    tokio_rustls::{
        TlsConnector,
        rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
    },
};

use super::{
    ByteCounts, EgressShared, forward_once, read_head, reply,
    request_head::{Authority, BodyLength, RequestHead},
};

/// Headers by which agents send keys.
const KEY_HEADERS: [&str; 4] = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];
/// Methods that are passed on: TRACE would send the key back.
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// Way to the model.
#[derive(Debug)]
pub(super) struct ModelGateway {
    upstream: ModelUpstream,
    /// Made for the first request.
    #[cfg(feature = "tls")]
    tls: OnceCell<Arc<ClientConfig>>,
}

impl ModelGateway {
    pub(super) fn new(upstream: ModelUpstream) -> Self {
        Self {
            upstream,
            #[cfg(feature = "tls")]
            tls: OnceCell::new(),
        }
    }

    /// Checks a request, and puts the key into it.
    ///
    /// # Errors
    /// Reason why it is refused.
    fn prepare(&self, head: &mut RequestHead) -> Result<(), &'static str> {
        if !METHODS.contains(&head.method.as_str()) {
            return Err("its method is none of a model's");
        }
        let path = head.target.split(['?', '#']).next().unwrap_or_default();
        let below = path.strip_prefix(self.upstream.path.as_str());
        let is_below = below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) && path.starts_with('/');
        let lower = path.to_ascii_lowercase();
        if !is_below || ["..", "%2e", "%2f", "%5c", "\\"].iter().any(|detour| lower.contains(detour)) {
            return Err("its path is not below the model's address");
        }
        for (name, value) in &mut head.headers {
            if KEY_HEADERS.iter().any(|known| name.eq_ignore_ascii_case(known)) {
                *value = value.replace(&self.upstream.placeholder, &self.upstream.key);
            }
        }
        Ok(())
    }

    #[cfg(feature = "tls")]
    async fn tls(&self) -> io::Result<Arc<ClientConfig>> {
        let make = || async { tokio::task::spawn_blocking(client_config).await.map_err(io::Error::other)? };
        self.tls.get_or_try_init(make).await.cloned()
    }
}

#[cfg(feature = "tls")]
fn client_config() -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
        return Err(io::Error::other(format!("this machine has no certificates of authorities{why}")));
    }
    let config = ClientConfig::builder_with_provider(ring::default_provider().into());
    let config = config.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl EgressShared {
    /// Serves requests to the model, one after the other.
    pub(super) async fn serve_model(&self, mut client: TcpStream, process: Option<ProcessId>) {
        let mut bytes = Vec::new();
        while self.serve_model_request(&mut client, &mut bytes, process).await {
            // Of the next one something has come, or it may take its time.
            if bytes.is_empty()
                && !timeout(super::IDLE_TIMEOUT, client.readable()).await.is_ok_and(|ready| ready.is_ok())
            {
                break;
            }
        }
        let _ = client.shutdown().await;
    }

    /// Serves one request, of which `bytes` have come. Returns whether another one can follow, and what has come of that in `bytes`.
    async fn serve_model_request(
        &self,
        client: &mut TcpStream,
        bytes: &mut Vec<u8>,
        process: Option<ProcessId>,
    ) -> bool {
        let Some(model) = &self.model else { return false };
        let ModelUpstream { is_encrypted, host, port, .. } = &model.upstream;
        let asked = Authority { host: host.clone(), port: *port };
        let mut head = match read_head(client, bytes).await {
            Ok(Some(head)) => head,
            Ok(None) => return false,
            Err(why) => {
                reply(client, "400 Bad Request", why).await;
                return false;
            }
        };
        if let Err(reason) = model.prepare(&mut head) {
            self.refuse(host, *port, reason, process);
            reply(client, "403 Forbidden", reason).await;
            return false;
        }
        let begun = Instant::now();
        let counts = ByteCounts::default();
        // Who configured the model has named its host.
        let server = match self.connect_to(&asked, true).await {
            Ok(server) => server,
            Err(reason) => {
                self.refuse(host, *port, &reason, process);
                reply(client, "502 Bad Gateway", &reason).await;
                return false;
            }
        };
        let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let usual = if *is_encrypted { 443 } else { 80 };
        let authority = if *port == usual { shown } else { format!("{shown}:{port}") };
        let mut rest = bytes.split_off(head.length);
        let length = match head.body {
            BodyLength::Known(length) => length,
            BodyLength::Chunked => u64::MAX,
        };
        // What comes behind the body is the next request.
        *bytes = rest.split_off(usize::try_from(length).unwrap_or(usize::MAX).min(rest.len()));
        let left = length - rest.len() as u64;
        let mut first = head.write(&authority, &head.target).into_bytes();
        first.append(&mut rest);
        let request = (head.method.as_str(), first, left);
        let closes = head
            .values("connection")
            .flat_map(|value| value.split(','))
            .any(|word| word.trim().eq_ignore_ascii_case("close"));
        // Where a body in chunks ends is not looked for.
        let goes_on = !closes && head.body != BodyLength::Chunked;
        let can_go_on = if *is_encrypted {
            match encrypt(model, server).await {
                Ok(server) => forward_once(client, server, request, goes_on, &counts).await,
                Err(reason) => {
                    self.refuse(host, *port, &reason, process);
                    reply(client, "502 Bad Gateway", &reason).await;
                    return false;
                }
            }
        } else {
            forward_once(client, server, request, goes_on, &counts).await
        };
        self.finish(asked, &counts, begun, process);
        can_go_on
    }
}

#[cfg(feature = "tls")]
async fn encrypt(
    model: &ModelGateway,
    server: TcpStream,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, String> {
    let host = &model.upstream.host;
    let failed = |why: String| format!("TLS with {host} failed: {why}");
    let name = ServerName::try_from(host.clone()).map_err(|error| failed(error.to_string()))?;
    let config = model.tls().await.map_err(|error| failed(error.to_string()))?;
    match timeout(super::CONNECT_TIMEOUT, TlsConnector::from(config).connect(name, server)).await {
        Ok(connected) => connected.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed(format!("it took more than {:?}", super::CONNECT_TIMEOUT))),
    }
}

#[cfg(not(feature = "tls"))]
async fn encrypt(_: &ModelGateway, _: TcpStream) -> Result<TcpStream, String> {
    Err("this build has no TLS: build it with the feature `tls`".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{super::request_head::parse_head, *};

    fn gateway() -> ModelGateway {
        ModelGateway::new(ModelUpstream {
            is_encrypted: true,
            host: "model.example".into(),
            port: 443,
            path: "/v1".into(),
            placeholder: "stand-in".into(),
            key: "the key".into(),
        })
    }

    fn prepared(request: &str) -> Result<String, &'static str> {
        let mut head = parse_head(request.as_bytes()).expect("a head").expect("a whole one");
        gateway().prepare(&mut head)?;
        Ok(head.write("model.example", &head.target))
    }

    #[test]
    fn the_key_is_in_headers_for_keys_alone() {
        let text = prepared(
            "POST /v1/messages?beta=stand-in HTTP/1.1\r\nHost: x\r\nX-Api-Key: stand-in\r\nAuthorization: Bearer stand-in\r\nX-Request-Id: stand-in\r\n\r\n",
        );
        let text = text.expect("passed on");
        assert_eq!(text.matches("the key").count(), 2, "{text}");
        assert!(text.contains("X-Request-Id: stand-in") && text.contains("?beta=stand-in"), "{text}");
    }

    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn a_model_is_asked_over_tls_and_no_other_passes_for_it() {
        use tokio::{io::AsyncReadExt, net::TcpListener};
        use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let private = certified.signing_key.serialize_der().try_into().expect("a key");
        let config = ServerConfig::builder_with_provider(ring::default_provider().into());
        let config = config.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
        let certificate = certified.cert.der().clone();
        let config = config.with_single_cert(vec![certificate.clone()], private).expect("fits");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let served = tokio::spawn(async move {
            let mut requests = Vec::new();
            for _ in 0..2 {
                let (stream, _) = listener.accept().await.expect("accepted");
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut got = Vec::new();
                while !got.ends_with(b"hi") && stream.read_buf(&mut got).await.unwrap_or(0) > 0 {}
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nreached").await.expect("answered");
                let _ = stream.shutdown().await;
                requests.push(String::from_utf8(got).expect("text"));
            }
            requests
        });
        let ask = async |trusts: bool| {
            let upstream = ModelUpstream { host: "localhost".into(), port, ..gateway().upstream };
            let model = ModelGateway::new(upstream);
            let mut roots = RootCertStore::empty();
            if trusts {
                roots.add(certificate.clone()).expect("added");
            }
            let config = ClientConfig::builder_with_provider(ring::default_provider().into());
            let config = config.with_safe_default_protocol_versions().expect("versions");
            let config = config.with_root_certificates(roots).with_no_client_auth();
            model.tls.set(Arc::new(config)).expect("the first");
            let shared = EgressShared::new(Vec::new(), "net:[1]".to_owned(), Arc::default());
            let shared = EgressShared { model: Some(model), ..shared };
            let door = TcpListener::bind("127.0.0.1:0").await.expect("bound");
            let address = door.local_addr().expect("an address");
            let (ours, theirs) = tokio::join!(TcpStream::connect(address), door.accept());
            let (mut client, (theirs, _)) = (ours.expect("connected"), theirs.expect("accepted"));
            let request = b"POST /v1/messages HTTP/1.1\r\nx-api-key: stand-in\r\nContent-Length: 2\r\n\r\nhi";
            client.write_all(request).await.expect("sent");
            shared.serve_model(theirs, None).await;
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("an answer");
            answer
        };
        let answer = ask(true).await;
        assert!(answer.ends_with("reached"), "{answer}");
        let answer = ask(false).await;
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("TLS with localhost"), "{answer}");
        let requests = served.await.expect("served");
        assert_eq!(requests.len(), 1);
        assert!(requests[0].contains("x-api-key: the key"), "{requests:?}");
    }

    #[tokio::test]
    async fn requests_follow_each_other_and_one_that_breaks_off_has_no_end() {
        use tokio::{io::AsyncReadExt, net::TcpListener};
        const CHUNKED: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let served = tokio::spawn(async move {
            for body in ["2\r\nhi\r\n0\r\n\r\n", "2\r\nh"] {
                let (mut stream, _) = listener.accept().await.expect("accepted");
                let mut got = Vec::new();
                while !got.ends_with(b"hi") && stream.read_buf(&mut got).await.expect("read") > 0 {}
                stream.write_all(format!("{CHUNKED}{body}").as_bytes()).await.expect("answered");
            }
        });
        let model = ModelUpstream { is_encrypted: false, host: "127.0.0.1".into(), port, ..gateway().upstream };
        let shared = EgressShared::new(Vec::new(), "net:[1]".to_owned(), Arc::default());
        let shared = EgressShared { model: Some(ModelGateway::new(model)), ..shared };
        let door = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = door.local_addr().expect("an address");
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), door.accept());
        let (mut client, (theirs, _)) = (ours.expect("connected"), theirs.expect("accepted"));
        let request = "POST /v1/messages HTTP/1.1\r\nx-api-key: stand-in\r\nContent-Length: 2\r\n\r\nhi";
        client.write_all(request.repeat(2).as_bytes()).await.expect("sent");
        shared.serve_model(theirs, None).await;
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.expect("answers");
        let head = CHUNKED.replace("Connection: close\r\n", "");
        assert_eq!(answers, format!("{head}2\r\nhi\r\n0\r\n\r\n{head}2\r\nh"));
        served.await.expect("served");
    }

    #[test]
    fn nothing_but_the_model_gets_the_key() {
        for line in [
            "TRACE /v1/messages",
            "OPTIONS /v1/messages",
            "CONNECT evil.example:443",
            "GET /v2/messages",
            "GET /v1evil/messages",
            "GET /v1/../admin",
            "GET /v1/%2E%2e/admin",
            "GET http://evil.example/v1/messages",
            "GET v1/messages",
        ] {
            let refused = prepared(&format!("{line} HTTP/1.1\r\nHost: x\r\nX-Api-Key: stand-in\r\n\r\n"));
            assert!(refused.is_err(), "{line}: {refused:?}");
        }
    }
}
