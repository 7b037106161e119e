//! Stored form of events, a JSON line each, and its conversions.
//!
//! `{"t":TURN,"d":MS,"v":VERSION,"e":{"stream:text":{"text":"…"}}}`. `t` is left out where there is no turn, `d`
//! (milliseconds after the batch's time) for 0, `v` for 1. `m` is the metadata of who appended the event, if there is some. `e` is the
//! derived form of [`Event`].

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ipc_protocol::{Envelope, Event, Json, SessionId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Last millisecond that a date with a year of four digits can express.
const LAST_MS: i64 = 253_402_300_799_999;
/// Longest line, in bytes.
pub(crate) const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Deepest nesting of a line: a document of [`Json`], at most 128 deep, and its envelope.
const MAX_DEPTH: usize = 160;

/// Converts a time to milliseconds since 1970, clamped to what a date can express.
pub(crate) fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    i64::try_from(since).unwrap_or(LAST_MS).min(LAST_MS)
}

/// Converts milliseconds since 1970 to a time.
pub(crate) fn time(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis.clamp(0, LAST_MS).unsigned_abs())
}

#[derive(Serialize)]
struct LineToWrite<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    t: Option<u64>,
    #[serde(skip_serializing_if = "is_zero")]
    d: i64,
    #[serde(skip_serializing_if = "is_one")]
    v: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    m: Option<&'a Json>,
    e: &'a Event,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &i64) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_one(n: &u32) -> bool {
    *n == 1
}

#[derive(Deserialize)]
struct LineRead<E> {
    t: Option<u64>,
    #[serde(default)]
    d: i64,
    v: Option<u32>,
    m: Option<Json>,
    e: E,
}

/// Appends an event's line, with its newline, to `out`.
///
/// # Errors
/// Never for an event that this release can make; serde's error otherwise.
pub(crate) fn write(out: &mut Vec<u8>, envelope: &Envelope, batch_ms: i64) -> Result<(), serde_json::Error> {
    let event = &envelope.event;
    let d = millis(envelope.created_at) - batch_ms;
    serde_json::to_writer(
        &mut *out,
        &LineToWrite { t: envelope.turn, d, v: event.version(), m: envelope.metadata.as_ref(), e: event },
    )?;
    out.push(b'\n');
    Ok(())
}

/// Parses a line. An event whose shape this release does not know becomes an [`Event::External`].
///
/// # Errors
/// If the line is no event.
pub(crate) fn read(
    line: &[u8],
    session: &Arc<SessionId>,
    offset: u64,
    batch_ms: i64,
) -> Result<Envelope, serde_json::Error> {
    let LineRead { t, d, m, e: event, .. } = match serde_json::from_slice::<LineRead<Event>>(line) {
        Ok(read) => read,
        Err(_) => read_fallback(line)?,
    };
    let created_at = time(batch_ms.saturating_add(d));
    Ok(Envelope { offset, created_at, session: Arc::clone(session), turn: t, metadata: m, event })
}

#[cold]
fn read_fallback(line: &[u8]) -> Result<LineRead<Event>, serde_json::Error> {
    if let Ok(read) = parse_deep::<LineRead<Event>>(line) {
        return Ok(read);
    }
    let LineRead { t, d, v, m, e } = parse_deep::<LineRead<serde_json::Map<String, Value>>>(line)?;
    let (kind, payload) = e.into_iter().next().ok_or_else(|| serde::de::Error::custom("an event has a type"))?;
    let event = Event::External { kind: kind.into(), version: v.unwrap_or(1), payload: Json::from(&payload) };
    Ok(LineRead { t, d, v, m, e: event })
}

/// Parses JSON that may be nested deeper than serde_json's own bound, which only fits a document without its
/// envelope.
pub(crate) fn parse_deep<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    if depth(text) <= MAX_DEPTH {
        parser.disable_recursion_limit();
    }
    let value = T::deserialize(&mut parser)?;
    parser.end()?;
    Ok(value)
}

/// Returns the nesting depth of `text`.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0_usize, 0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Converts stored lines to public envelopes without parsing their payloads.
#[derive(Debug)]
pub(crate) struct PublicLines {
    session: Arc<SessionId>,
    /// Cached time and its text: most events of a batch share it.
    cached_time: (i64, String),
}

/// Stored line, taken apart.
struct LineParts<'a> {
    turn: Option<&'a str>,
    after_ms: i64,
    /// Text before, within and after the type; each is JSON text without quotes.
    kind: [&'a str; 3],
    version: &'a str,
    payload: &'a str,
}

impl PublicLines {
    pub(crate) fn new(session: &SessionId) -> Self {
        Self { session: Arc::new(session.clone()), cached_time: (0, String::from("1970-01-01T00:00:00.000Z")) }
    }

    /// Appends the public form of a stored line, with its newline, to `out`.
    ///
    /// # Errors
    /// If the line is no event.
    pub(crate) fn write(
        &mut self,
        out: &mut Vec<u8>,
        line: &[u8],
        offset: u64,
        batch_ms: i64,
    ) -> Result<(), serde_json::Error> {
        let Some(parts) = str::from_utf8(line).ok().and_then(split_line) else {
            let envelope = read(line, &self.session, offset, batch_ms)?;
            serde_json::to_writer(&mut *out, &envelope.to_json()?)?;
            out.push(b'\n');
            return Ok(());
        };
        let at = batch_ms.saturating_add(parts.after_ms);
        if self.cached_time.0 != at {
            self.cached_time = (at, humantime::format_rfc3339_millis(time(at)).to_string());
        }
        out.extend_from_slice(br#"{"offset":""#);
        out.extend_from_slice(&digits(offset));
        let [kind_begin, kind, kind_end] = parts.kind;
        let kind = [r#"","type":""#, kind_begin, kind, kind_end, r#"","version":"#, parts.version];
        let rest = [r#","createdAt":""#, &self.cached_time.1, r#"","eventStreamId":""#, self.session.as_str()];
        let payload = [r#"","payload":"#, parts.payload];
        kind.into_iter().chain(rest).chain(payload).for_each(|piece| out.extend_from_slice(piece.as_bytes()));
        if let Some(turn) = parts.turn {
            for piece in [r#","metadata":{"turn":"#, turn, "}"] {
                out.extend_from_slice(piece.as_bytes());
            }
        }
        out.extend_from_slice(b"}\n");
        Ok(())
    }
}

/// Formats an offset as 20 digits.
fn digits(mut offset: u64) -> [u8; 20] {
    let mut text = [b'0'; 20];
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (offset % 10) as u8;
        offset /= 10;
    }
    text
}

/// Takes apart a line made by [`write()`]. `None` for any other, and for one with metadata.
fn split_line(line: &str) -> Option<LineParts<'_>> {
    let mut rest = line.strip_prefix('{')?;
    let turn = field(&mut rest, r#""t":"#);
    let after_ms = field(&mut rest, r#""d":"#).map_or(Some(0), |text| text.parse().ok())?;
    let version = field(&mut rest, r#""v":"#).unwrap_or("1");
    let rest = rest.strip_prefix(r#""e":{"#)?.strip_suffix("}}")?;
    let (kind, rest) = string(rest)?;
    let payload = rest.strip_prefix(':')?;
    match kind {
        "harness:event-received" => {
            let (agent, rest) = string(payload.strip_prefix(r#"{"agent":"#)?)?;
            let payload = rest.strip_prefix(r#","payload":"#)?.strip_suffix('}')?;
            Some(LineParts { turn, after_ms, kind: ["harness:", agent, ":event-received"], version, payload })
        }
        "external" => {
            let (kind, rest) = string(payload.strip_prefix(r#"{"kind":"#)?)?;
            let mut rest = rest.strip_prefix(',')?;
            let version = field(&mut rest, r#""version":"#)?;
            let payload = rest.strip_prefix(r#""payload":"#)?.strip_suffix('}')?;
            Some(LineParts { turn, after_ms, kind: ["", kind, ""], version, payload })
        }
        kind => Some(LineParts { turn, after_ms, kind: ["", kind, ""], version, payload }),
    }
}

/// Takes `key`, the number behind it and the comma that follows.
fn field<'a>(rest: &mut &'a str, key: &str) -> Option<&'a str> {
    let (value, after) = rest.strip_prefix(key)?.split_once(',')?;
    *rest = after;
    Some(value)
}

/// Takes a JSON string. Returns the raw text between its quotes, and the text after it.
fn string(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', &inner.as_bytes()[from..])?;
        if inner.as_bytes()[at] == b'"' {
            return Some((&inner[..at], &inner[at + 1..]));
        }
        // An escape covers at least one byte; skip that byte, since a quote there does not end the string.
        from = at + 2;
        if from > inner.len() {
            return None;
        }
    }
}

#[cfg(test)]
mod tests;
