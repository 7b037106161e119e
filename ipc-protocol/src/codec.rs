//! Frames and their content: the only place that uses bincode.
//!
//! On a stream a frame is `u32` length (little-endian, of the rest) + one flag byte + payload; on a packet socket a
//! frame is a packet, without the length. A message that does not fit one frame continues in further frames. A
//! whole message may come between two of them, so that a kill overtakes a long prompt ([`Outbox`]).
//!
//! Integers have a fixed size, so the bytes that a message claims while it is decoded are the bytes it has: one
//! limit bounds both, and a hostile length never causes a wait or a reservation. At most [`MAX_MESSAGE`] of an
//! unfinished message is kept. Besides that, decoding reserves at most 1 MiB ahead for each list that another one
//! contains (serde's bound), and a value is larger than its bytes by a small factor (24 bytes for an empty string
//! of 8).

use serde::{Serialize, de::DeserializeOwned};

/// Longest frame in bytes, including the flag byte but not the length.
pub const MAX_FRAME: usize = 64 * 1024;
/// Longest message in bytes.
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;

const LENGTH: usize = 4;
const HEADER: usize = LENGTH + 1;
const PAYLOAD: usize = MAX_FRAME - 1;

/// Flag of a frame that is a complete message.
const WHOLE: u8 = 0;
/// Flag of a fragment whose message continues in the next frame that is not [`WHOLE`].
const MORE: u8 = 1;
/// Flag of a message's last fragment.
const LAST: u8 = 2;

/// Error in received or sent bytes. The connection is of no further use after one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// A frame claims to be longer than allowed, or empty.
    #[error("frame of {len} bytes (allowed: 1 to {MAX_FRAME})")]
    FrameLength {
        /// Claimed length.
        len: usize,
    },
    /// A message is longer than allowed.
    #[error("message of more than {MAX_MESSAGE} bytes ({len})")]
    MessageLength {
        /// Length of the message, as far as known.
        len: usize,
    },
    /// The flag of a frame is unknown.
    #[error("frame with unknown flag {0}")]
    Flag(u8),
    /// Bytes are left in the frame after its message.
    #[error("{0} bytes left over after a message")]
    Trailing(usize),
    /// The bytes are not a message of the expected type.
    #[error("undecodable message of {len} bytes")]
    Decode {
        /// Number of bytes.
        len: usize,
        /// Error of bincode.
        #[source]
        source: Box<bincode::error::DecodeError>,
    },
    /// The message cannot be encoded, for example because a path is not UTF-8.
    #[error("unencodable message")]
    Encode(#[source] Box<bincode::error::EncodeError>),
}

type CodecConfig = bincode::config::Configuration<bincode::config::LittleEndian, bincode::config::Fixint>;

const CONFIG: CodecConfig = bincode::config::standard().with_fixed_int_encoding();

/// Appends `message` to `out` as one frame or more.
///
/// # Errors
/// [`CodecError::MessageLength`] and [`CodecError::Encode`]; `out` is unchanged then.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    if let Err(source) = bincode::serde::encode_into_std_write(message, out, CONFIG) {
        out.truncate(start);
        return Err(CodecError::Encode(Box::new(source)));
    }
    let len = out.len() - start - HEADER;
    if len <= PAYLOAD {
        write_header(&mut out[start..start + HEADER], len, WHOLE);
        return Ok(());
    }
    if len > MAX_MESSAGE {
        out.truncate(start);
        return Err(CodecError::MessageLength { len });
    }
    let body = out.split_off(start + HEADER);
    out.truncate(start);
    let mut chunks = body.chunks(PAYLOAD).peekable();
    while let Some(chunk) = chunks.next() {
        let mut header = [0; HEADER];
        write_header(&mut header, chunk.len(), if chunks.peek().is_some() { MORE } else { LAST });
        out.extend_from_slice(&header);
        out.extend_from_slice(chunk);
    }
    Ok(())
}

fn write_header(header: &mut [u8], payload: usize, flag: u8) {
    #[expect(clippy::cast_possible_truncation, reason = "a payload is at most MAX_FRAME - 1")]
    header[..LENGTH].copy_from_slice(&((payload + 1) as u32).to_le_bytes());
    header[LENGTH] = flag;
}

/// Returns the length of the frame at the start of `bytes`, its length field included.
///
/// # Errors
/// [`CodecError::FrameLength`]
fn frame_len(bytes: &[u8]) -> Result<Option<usize>, CodecError> {
    let Some(field) = bytes.first_chunk::<LENGTH>() else { return Ok(None) };
    let len = u32::from_le_bytes(*field) as usize;
    if len == 0 || len > MAX_FRAME {
        return Err(CodecError::FrameLength { len });
    }
    Ok(Some(LENGTH + len))
}

/// Encodes a message as packets, for a packet socket.
///
/// # Errors
/// Same as [`encode`].
pub fn encode_packets<T: Serialize>(message: &T) -> Result<Vec<Vec<u8>>, CodecError> {
    let mut frames = Vec::new();
    encode(message, &mut frames)?;
    let mut rest = &frames[..];
    let mut packets = Vec::new();
    while let Some(len) = frame_len(rest)? {
        packets.push(rest[LENGTH..len].to_vec());
        rest = &rest[len..];
    }
    Ok(packets)
}

/// Decodes exactly one message.
fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, CodecError> {
    let decoded = if body.len() < MAX_FRAME {
        bincode::serde::decode_from_slice(body, CONFIG.with_limit::<MAX_FRAME>())
    } else {
        bincode::serde::decode_from_slice(body, CONFIG.with_limit::<MAX_MESSAGE>())
    };
    match decoded {
        Ok((message, used)) if used == body.len() => Ok(message),
        Ok((_, used)) => Err(CodecError::Trailing(body.len() - used)),
        Err(source) => Err(CodecError::Decode { len: body.len(), source: Box::new(source) }),
    }
}

/// Reassembles messages from frames.
#[derive(Debug, Default)]
pub struct MessageAssembler {
    partial: Vec<u8>,
}

impl MessageAssembler {
    /// Takes one frame (flag byte and payload: one packet, complete) and returns the message that it completes.
    ///
    /// # Errors
    /// Any [`CodecError`]; see there.
    pub fn frame<T: DeserializeOwned>(&mut self, frame: &[u8]) -> Result<Option<T>, CodecError> {
        if frame.len() > MAX_FRAME {
            return Err(CodecError::FrameLength { len: frame.len() });
        }
        let Some((&flag, payload)) = frame.split_first() else { return Err(CodecError::FrameLength { len: 0 }) };
        match flag {
            WHOLE => decode(payload).map(Some),
            MORE | LAST => {
                let len = self.partial.len() + payload.len();
                if len > MAX_MESSAGE {
                    return Err(CodecError::MessageLength { len });
                }
                if self.partial.capacity() < len {
                    // Doubles like `Vec`, but never beyond the limit.
                    let capacity = (2 * self.partial.capacity()).clamp(len, MAX_MESSAGE);
                    self.partial.reserve_exact(capacity - self.partial.len());
                }
                self.partial.extend_from_slice(payload);
                if flag == MORE {
                    return Ok(None);
                }
                decode(&std::mem::take(&mut self.partial)).map(Some)
            }
            other => Err(CodecError::Flag(other)),
        }
    }
}

/// Decodes the output of [`encode`], one complete message.
///
/// # Errors
/// Any [`CodecError`]; see there.
pub fn decode_frames<T: DeserializeOwned>(mut frames: &[u8]) -> Result<T, CodecError> {
    let mut assembler = MessageAssembler::default();
    loop {
        let len = frame_len(frames)?.filter(|len| *len <= frames.len()).ok_or(CodecError::FrameLength { len: 0 })?;
        let (frame, rest) = frames.split_at(len);
        match assembler.frame(&frame[LENGTH..])? {
            Some(message) if rest.is_empty() => return Ok(message),
            Some(_) => return Err(CodecError::Trailing(rest.len())),
            None => frames = rest,
        }
    }
}

/// Buffer of bytes read from a stream, and decoder of the messages in them.
///
/// ```
/// use ipc_protocol::codec::{encode, Inbox};
/// let mut wire = Vec::new();
/// encode(&"hello".to_owned(), &mut wire).unwrap();
/// let mut inbox = Inbox::default();
/// inbox.spare()[..wire.len()].copy_from_slice(&wire);
/// inbox.filled(wire.len());
/// assert_eq!(inbox.next_message::<String>().unwrap().as_deref(), Some("hello"));
/// assert_eq!(inbox.next_message::<String>().unwrap(), None);
/// ```
#[derive(Debug)]
pub struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    assembler: MessageAssembler,
}

/// Initial size of an inbox: enough for a session with little traffic.
const SMALL: usize = 4 * 1024;
/// Size of an inbox under load: a few of the longest frames.
const LARGE: usize = 4 * MAX_FRAME;

impl Default for Inbox {
    fn default() -> Self {
        Self { buffer: vec![0; SMALL], start: 0, end: 0, assembler: MessageAssembler::default() }
    }
}

impl Inbox {
    /// Returns the space to read into: never empty.
    pub fn spare(&mut self) -> &mut [u8] {
        let was_full = self.end == self.buffer.len();
        if self.start > 0 && self.buffer.len() - self.end < self.buffer.len() / 4 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if was_full && self.buffer.len() < LARGE {
            self.buffer.resize((4 * self.buffer.len()).min(LARGE), 0);
        }
        &mut self.buffer[self.end..]
    }

    /// Records the number of bytes read into [`Inbox::spare`].
    pub fn filled(&mut self, len: usize) {
        self.end = (self.end + len).min(self.buffer.len());
    }

    /// Returns the next complete message; `None` until more is read.
    ///
    /// # Errors
    /// Any [`CodecError`]; see there.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, CodecError> {
        loop {
            let bytes = &self.buffer[self.start..self.end];
            if bytes.is_empty() {
                // All bytes are consumed: the next ones go to the front again, unless the buffer is full and so may
                // grow.
                if self.end < self.buffer.len() {
                    (self.start, self.end) = (0, 0);
                }
                return Ok(None);
            }
            let Some(len) = frame_len(bytes)? else { return Ok(None) };
            if bytes.len() < len {
                return Ok(None);
            }
            let message = self.assembler.frame(&bytes[LENGTH..len])?;
            self.start += len;
            if message.is_some() {
                return Ok(message);
            }
        }
    }
}

/// Bytes to be written to a stream, in two lanes: control overtakes bulk at the next frame.
#[derive(Debug, Default)]
pub struct Outbox {
    control: OutboxLane,
    bulk: OutboxLane,
    /// Start of a frame in `bulk`, at or before the next byte to write until [`Outbox::advance_boundary`] moves it on.
    boundary: usize,
    /// True if the last [`Outbox::chunk`] came from the control lane.
    chunk_is_control: bool,
}

#[derive(Debug, Default)]
struct OutboxLane {
    bytes: Vec<u8>,
    written: usize,
}

impl OutboxLane {
    fn remaining(&self) -> &[u8] {
        &self.bytes[self.written..]
    }
}

impl Outbox {
    /// Queues a message behind all others.
    ///
    /// # Errors
    /// Same as [`encode`]; nothing is queued then.
    pub fn push<T: Serialize>(&mut self, message: &T) -> Result<(), CodecError> {
        encode(message, &mut self.bulk.bytes)
    }

    /// Queues an output of [`encode`] behind all other messages.
    pub fn push_encoded(&mut self, frames: &[u8]) {
        self.bulk.bytes.extend_from_slice(frames);
    }

    /// Queues a message before everything but control. A message of more than one frame goes to the other lane,
    /// since fragments of two messages cannot mix.
    ///
    /// # Errors
    /// Same as [`encode`]; nothing is queued then.
    pub fn push_control<T: Serialize>(&mut self, message: &T) -> Result<(), CodecError> {
        let start = self.control.bytes.len();
        encode(message, &mut self.control.bytes)?;
        if frame_len(&self.control.bytes[start..])? != Some(self.control.bytes.len() - start) {
            let frames = self.control.bytes.split_off(start);
            self.bulk.bytes.extend_from_slice(&frames);
        }
        Ok(())
    }

    /// Returns the number of waiting bytes.
    pub fn len(&self) -> usize {
        self.control.remaining().len() + self.bulk.remaining().len()
    }

    /// Returns true if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if control waits. [`Outbox::chunk`] is then of control, or the rest of a frame that is half-written.
    pub fn has_control(&self) -> bool {
        !self.control.remaining().is_empty()
    }

    /// Returns the bytes to write next; empty if nothing waits.
    pub fn chunk(&mut self) -> &[u8] {
        self.chunk_is_control = false;
        if self.control.remaining().is_empty() {
            return self.bulk.remaining();
        }
        // A half-written frame must be finished first, in whichever lane it is.
        if self.control.written == 0 {
            self.advance_boundary();
            if self.boundary > self.bulk.written {
                return &self.bulk.bytes[self.bulk.written..self.boundary];
            }
        }
        self.chunk_is_control = true;
        self.control.remaining()
    }

    /// Records the number of bytes of the last [`Outbox::chunk`] that were written.
    pub fn advance(&mut self, len: usize) {
        if self.chunk_is_control {
            self.control.written += len;
            if self.control.remaining().is_empty() {
                self.control = OutboxLane::default();
            }
            return;
        }
        self.bulk.written += len;
        if self.bulk.remaining().is_empty() {
            self.bulk.bytes.clear();
            // Do not keep the buffer of a burst.
            self.bulk.bytes.shrink_to(4 * MAX_FRAME);
            (self.bulk.written, self.boundary) = (0, 0);
        } else if self.bulk.written >= 8 * MAX_FRAME {
            // After the walk no header before the next byte to write is needed any more.
            self.advance_boundary();
            self.bulk.bytes.drain(..self.bulk.written);
            self.boundary -= self.bulk.written;
            self.bulk.written = 0;
        }
    }

    /// Moves `boundary` to the first frame that begins at or behind the next byte to write.
    fn advance_boundary(&mut self) {
        while self.boundary < self.bulk.written {
            // Our own frames: their headers are valid and complete.
            let len = frame_len(&self.bulk.bytes[self.boundary..]).ok().flatten();
            self.boundary += len.unwrap_or(self.bulk.bytes.len() - self.boundary);
        }
    }
}
