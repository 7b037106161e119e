//! The codec, by properties.

mod hostile;
mod lanes;
mod messages;
mod shapes;
mod sizes;
mod values;
mod wire;

use ipc_protocol::codec::{CodecError, Inbox};
use serde::de::DeserializeOwned;

/// Feeds `bytes` to `inbox` in pieces of at most `sizes`, in turn, and returns the messages that came out.
fn receive<T: DeserializeOwned>(
    inbox: &mut Inbox,
    mut bytes: &[u8],
    sizes: impl IntoIterator<Item = usize>,
) -> Result<Vec<T>, CodecError> {
    let mut messages = Vec::new();
    let mut sizes = sizes.into_iter();
    while !bytes.is_empty() {
        let spare = inbox.spare();
        assert!(!spare.is_empty(), "a reader never gets stuck");
        let len = sizes.next().unwrap_or(usize::MAX).clamp(1, bytes.len()).min(spare.len());
        spare[..len].copy_from_slice(&bytes[..len]);
        inbox.filled(len);
        bytes = &bytes[len..];
        while let Some(message) = inbox.next_message()? {
            messages.push(message);
        }
    }
    Ok(messages)
}
