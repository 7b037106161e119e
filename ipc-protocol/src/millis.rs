//! Serde formats of times, in whole milliseconds, on the wire and in JSON.

/// Format of a [`std::time::Duration`]: milliseconds.
pub(crate) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_millis)
    }
}

/// Format of a [`std::time::SystemTime`]: milliseconds since 1970 on the wire, RFC 3339 text in JSON.
pub mod time {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    /// Serializes the time.
    ///
    /// # Errors
    /// Errors of the format.
    pub fn serialize<S: Serializer>(value: &SystemTime, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            return s.collect_str(&humantime::format_rfc3339_millis(*value));
        }
        let since = value.duration_since(UNIX_EPOCH).unwrap_or_default();
        s.serialize_u64(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Deserializes the time.
    ///
    /// # Errors
    /// Errors of the format, and text that is no time.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<SystemTime, D::Error> {
        if d.is_human_readable() {
            let text = String::deserialize(d)?;
            return humantime::parse_rfc3339(&text).map_err(D::Error::custom);
        }
        let millis = u64::deserialize(d)?;
        UNIX_EPOCH
            .checked_add(Duration::from_millis(millis))
            .ok_or_else(|| D::Error::custom(format!("{millis} ms since 1970 is no time")))
    }
}
