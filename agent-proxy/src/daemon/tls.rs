//! Encryption of connections over the network.

use std::{path::Path, sync::Arc};

use proxy_server::ProblemDetails;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

/// Reads a certificate with its chain, and its key, in PEM. Blocks for some milliseconds.
///
/// # Errors
/// `usage`: says which file, and what it should be.
pub(super) fn acceptor(certificates: &Path, key: &Path) -> Result<TlsAcceptor, ProblemDetails> {
    let wrong = |path: &Path, what: &str, error: &dyn std::fmt::Display| {
        ProblemDetails::usage(format!("{} has no {what} in PEM that can be used: {error}", path.display()))
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificates).and_then(Iterator::collect);
    let chain = chain.map_err(|error| wrong(certificates, "certificate", &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, "private key", &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ProblemDetails::failed(format!("TLS cannot be set up: {error}")))?;
    let config = config.with_no_client_auth().with_single_cert(chain, secret);
    let mut config = config.map_err(|error| wrong(certificates, "certificate for that key", &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
