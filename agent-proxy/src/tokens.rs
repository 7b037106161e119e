//! File of tokens of callers over the network.

use std::{
    io,
    path::{Path, PathBuf},
};

use ipc_protocol::ErrorChain;
use proxy_server::{ProblemDetails, Role, TokenError, TokenFile};

use crate::config_dir::first_token;

/// Name of the file in the configuration directory.
const FILE: &str = "tokens.json";

/// Returns the file in this configuration directory.
pub(crate) fn file(directory: &Path) -> TokenFile {
    TokenFile::new(directory.join(FILE))
}

/// Creates the first token, where there is none, and returns the file that it was written to.
///
/// # Errors
/// As [`TokenFile::create`].
pub(crate) fn create_first(tokens: &TokenFile) -> Result<Option<PathBuf>, ProblemDetails> {
    if tokens.path().exists() {
        return Ok(None);
    }
    let token = tokens.create("first", Role::Admin, None).map_err(problem)?;
    let path = tokens.path().parent().map(first_token).unwrap_or_default();
    let written = proxy_server::write_private(&path, format!("{token}\n").as_bytes());
    written.map_err(|error: io::Error| {
        ProblemDetails::failed(format!("writing the first token to {} failed: {error}", path.display()))
    })?;
    Ok(Some(path))
}

/// Converts an error of the file.
pub(crate) fn problem(error: TokenError) -> ProblemDetails {
    let kind = match &error {
        TokenError::Exists(_) => "already-exists",
        TokenError::Missing(_) => "unknown-token",
        TokenError::Name(_) => "usage",
        TokenError::Full => "refused",
        TokenError::Io { .. } | TokenError::Unreadable { .. } => "failed",
    };
    ProblemDetails::new(kind, ErrorChain(&error).to_string())
}
