//! Offsets in JSON that outlives a release: 20 decimal digits, as in events. Earlier releases wrote a number.

use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(offset: &u64, s: S) -> Result<S::Ok, S::Error> {
    ipc_protocol::offset_text::serialize(offset, s)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum RecordedOffset {
        Number(u64),
        Text(#[serde(with = "ipc_protocol::offset_text")] u64),
    }
    RecordedOffset::deserialize(d).map(|(RecordedOffset::Number(offset) | RecordedOffset::Text(offset))| offset)
}
