//! Takeover of a dead host's sessions by a new host.
//!
//! The fork server of a detached session listens on a local socket. A host connects and sends a [`AdoptRequest`], one line
//! of JSON, with one end of a fresh pair of packet sockets beside its first byte. It gets back one line, a
//! [`AdoptResponse`]. If that makes the host the owner, the pair is the connection to the fork server, as described in
//! [`crate::message`].
//!
//! Host and fork server may be of two consecutive releases. Bincode does not describe itself, so they then exchange
//! JSON: each message is a string in the codec's own frames, which has the JSON form of the message. Each side
//! ignores what it does not know.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    ProcessId,
    codec::{CodecError, Inbox, MessageAssembler, Outbox, encode, encode_packets},
    message::VERSION,
};

/// Releases that this one can take over from and hand over to.
pub const SUPPORTED_VERSIONS: [u32; 2] = [VERSION.saturating_sub(1), VERSION];

/// Longest line that either side sends, its end included.
pub const MAX_LINE: usize = 4096;

/// First line of a host. Unknown fields are ignored; new fields have defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdoptRequest {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// Versions that the sender can communicate with.
    pub understood: Vec<u32>,
    /// Process of the sender, for people.
    pub process: ProcessId,
}

/// Answer of the fork server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum AdoptResponse {
    /// The host is now the owner.
    Owner {
        /// [`VERSION`] of the fork server.
        version: u32,
        /// Process of the fork server.
        process: ProcessId,
        /// True if the two use the self-describing form.
        described: bool,
    },
    /// Another host owns the sessions.
    Busy {
        /// Process of that host, for people.
        owner: Option<ProcessId>,
    },
    /// The host cannot become the owner.
    Refused {
        /// Cause of the refusal.
        reason: String,
    },
}

impl AdoptRequest {
    /// Creates the claim of this build.
    pub fn new(process: ProcessId) -> Self {
        Self { version: VERSION, understood: SUPPORTED_VERSIONS.to_vec(), process }
    }

    /// Chooses the wire between this build and the sender.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn wire(&self) -> Result<WireFormat, String> {
        if self.version == VERSION {
            return Ok(WireFormat::Bincode);
        }
        if SUPPORTED_VERSIONS.contains(&self.version) || self.understood.contains(&VERSION) {
            return Ok(WireFormat::Json);
        }
        Err(format!(
            "it is of version {VERSION}, which talks with hosts of versions {SUPPORTED_VERSIONS:?}; yours is {}",
            self.version
        ))
    }
}

/// Message of a proxy in the self-describing form, with its number, so that an unknown message still counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedMessage<T> {
    /// Number of the message; 0 for an answer, which has none.
    pub seq: u64,
    /// Message itself.
    pub say: T,
}

/// Encoding of the messages on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireFormat {
    /// Bincode: both sides are of one build.
    #[default]
    Bincode,
    /// JSON, which describes itself.
    Json,
}

/// Message as the codec encodes it for a [`WireFormat`].
#[derive(Serialize)]
#[serde(untagged)]
enum WireBody<'a, T> {
    /// The message itself.
    Itself(&'a T),
    /// Its JSON form.
    Text(String),
}

/// Message that was read.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceivedMessage<T> {
    /// Known message.
    Understood(T),
    /// JSON form of a message of another release, which this one does not know.
    Unknown(String),
}

impl WireFormat {
    /// Chooses the wire; `true` for the self-describing one.
    pub fn from_is_json(described: bool) -> Self {
        if described { Self::Json } else { Self::Bincode }
    }

    /// Returns true for the self-describing wire.
    pub fn is_json(self) -> bool {
        self == Self::Json
    }

    fn body<T: Serialize>(self, message: &T) -> Result<WireBody<'_, T>, CodecError> {
        let failed = |error: serde_json::Error| bincode::error::EncodeError::OtherString(error.to_string());
        match self {
            Self::Bincode => Ok(WireBody::Itself(message)),
            Self::Json => serde_json::to_string(message)
                .map(WireBody::Text)
                .map_err(|error| CodecError::Encode(Box::new(failed(error)))),
        }
    }

    fn parse_text<T: DeserializeOwned>(text: String) -> ReceivedMessage<T> {
        serde_json::from_str(&text).map_or(ReceivedMessage::Unknown(text), ReceivedMessage::Understood)
    }

    /// Encodes a message like [`encode`].
    ///
    /// # Errors
    /// Same as [`encode`].
    pub fn encode<T: Serialize>(self, message: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
        encode(&self.body(message)?, out)
    }

    /// Encodes a message like [`encode_packets`].
    ///
    /// # Errors
    /// Same as [`encode`].
    pub fn encode_packets<T: Serialize>(self, message: &T) -> Result<Vec<Vec<u8>>, CodecError> {
        encode_packets(&self.body(message)?)
    }

    /// Queues a message like [`Outbox::push`].
    ///
    /// # Errors
    /// Same as [`encode`].
    pub fn push<T: Serialize>(self, outbox: &mut Outbox, message: &T) -> Result<(), CodecError> {
        outbox.push(&self.body(message)?)
    }

    /// Queues a message like [`Outbox::push_control`].
    ///
    /// # Errors
    /// Same as [`encode`].
    pub fn push_control<T: Serialize>(self, outbox: &mut Outbox, message: &T) -> Result<(), CodecError> {
        outbox.push_control(&self.body(message)?)
    }

    /// Reads a message like [`Inbox::next_message`].
    ///
    /// # Errors
    /// Any [`CodecError`].
    pub fn next_message<T: DeserializeOwned>(
        self,
        inbox: &mut Inbox,
    ) -> Result<Option<ReceivedMessage<T>>, CodecError> {
        match self {
            Self::Bincode => Ok(inbox.next_message()?.map(ReceivedMessage::Understood)),
            Self::Json => Ok(inbox.next_message::<String>()?.map(Self::parse_text)),
        }
    }

    /// Reads a frame like [`MessageAssembler::frame`].
    ///
    /// # Errors
    /// Any [`CodecError`].
    pub fn frame<T: DeserializeOwned>(
        self,
        assembler: &mut MessageAssembler,
        frame: &[u8],
    ) -> Result<Option<ReceivedMessage<T>>, CodecError> {
        match self {
            Self::Bincode => Ok(assembler.frame(frame)?.map(ReceivedMessage::Understood)),
            Self::Json => Ok(assembler.frame::<String>(frame)?.map(Self::parse_text)),
        }
    }
}
