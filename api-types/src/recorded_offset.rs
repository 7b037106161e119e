//! Offsets in JSON that outlives a release: 20 decimal digits, as in events. Earlier releases wrote a number.

use serde::{Deserialize, Deserializer, Serializer};

/// Writes 20 decimal digits.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(offset: &u64, s: S) -> Result<S::Ok, S::Error> {
    ipc_protocol::offset_text::serialize(offset, s)
}

/// Reads 20 decimal digits, or a number.
///
/// # Errors
/// For anything else.
pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum RecordedOffset {
        Number(u64),
        Text(#[serde(with = "ipc_protocol::offset_text")] u64),
    }
    RecordedOffset::deserialize(d).map(|(RecordedOffset::Number(offset) | RecordedOffset::Text(offset))| offset)
}
