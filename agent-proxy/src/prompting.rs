//! Prompts from the command line.

use std::path::Path;

use api_types::ProblemDetails;
use base64::{Engine, engine::general_purpose::STANDARD};
use ipc_protocol::PromptPart;

use crate::args::AttachmentArgs;

/// Largest size of an image: providers accept less.
const MAX_FILE_BYTES: u64 = 10 << 20;

/// Extensions of image files, and their MIME types.
const PICTURES: [(&str, &str); 5] =
    [("png", "image/png"), ("jpg", "image/jpeg"), ("jpeg", "image/jpeg"), ("gif", "image/gif"), ("webp", "image/webp")];

/// Builds the parts of a prompt: `text`, or standard input for `-`, then the images and the files.
///
/// # Errors
/// `usage` when standard input is not UTF-8, or an attachment cannot be read.
pub(crate) fn parts(text: &str, attachments: &AttachmentArgs) -> Result<Vec<PromptPart>, ProblemDetails> {
    let text = if text == "-" { from_stdin("the prompt")? } else { text.to_owned() };
    let mut parts = vec![PromptPart::Text(text)];
    for path in &attachments.images {
        parts.push(picture(path)?);
    }
    for path in &attachments.files {
        parts.push(file(path)?);
    }
    Ok(parts)
}

/// Reads all of standard input.
///
/// # Errors
/// `usage` when the input is not UTF-8.
pub(crate) fn from_stdin(what: &str) -> Result<String, ProblemDetails> {
    std::io::read_to_string(std::io::stdin().lock())
        .map_err(|error| ProblemDetails::usage(format!("reading {what} from standard input failed: {error}")))
}

fn picture(path: &Path) -> Result<PromptPart, ProblemDetails> {
    let refused = |reason: String| ProblemDetails::usage(format!("--image {}: {reason}", path.display()));
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    let known = PICTURES.iter().find(|(known, _)| *known == extension);
    let (_, mime_type) = known.ok_or_else(|| refused("its name has to end with png, jpg, jpeg, gif or webp".into()))?;
    let size = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(refused(format!("it has {size} bytes, and no agent takes more than {MAX_FILE_BYTES}")));
    }
    let bytes = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
    Ok(PromptPart::Image { mime_type: (*mime_type).to_owned(), data: STANDARD.encode(bytes) })
}

/// Builds a file part with the absolute path, since the agent may run in another directory.
fn file(path: &Path) -> Result<PromptPart, ProblemDetails> {
    let refused = |reason: String| ProblemDetails::usage(format!("--file {}: {reason}", path.display()));
    let path = path.canonicalize().map_err(|error| refused(error.to_string()))?;
    let path = path.into_os_string().into_string().map_err(|_| refused("its path is not UTF-8".into()))?;
    Ok(PromptPart::File { path })
}
