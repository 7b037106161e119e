//! How a host takes over the sessions of a dead one.
//!
//! The fork server of a detached session listens on a local socket. Who connects sends one line of JSON, a [`Claim`], and
//! beside its first byte one end of a fresh pair of packet sockets; it gets one line back, a [`Verdict`]. If that says that it
//! is the owner now, the pair is the connection to the fork server, as [`crate::message`] says.
//!
//! Host and fork server may be of two releases, one of which is the one after the other. Bincode does not describe itself, so
//! they then talk in JSON: each message is a string in the codec's own frames, and that string is the JSON form of the
//! message. What one side does not know it passes over.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    ProcessId,
    codec::{Assembler, CodecError, Inbox, Outbox, encode, encode_packets},
    message::VERSION,
};

/// Releases that this one can take over from and hand over to.
pub const UNDERSTOOD: [u32; 2] = [VERSION - 1, VERSION];

/// Longest line that either side sends, its end included.
pub const MAX_LINE: usize = 4096;

/// What a host says first. Fields that are not known are passed over; new ones have defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The sender's [`VERSION`].
    pub version: u32,
    /// The versions that it can talk with.
    #[serde(default)]
    pub understood: Vec<u32>,
    /// The sender, for people.
    pub process: ProcessId,
}

/// What it gets back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Verdict {
    /// It is the owner now.
    Owner {
        /// The fork server's [`VERSION`].
        version: u32,
        /// The fork server.
        process: ProcessId,
        /// Whether the two talk in the form that describes itself.
        #[serde(default)]
        described: bool,
    },
    /// Another host has the sessions.
    Busy {
        /// Which, for people.
        #[serde(default)]
        owner: Option<ProcessId>,
    },
    /// It cannot be the owner.
    Refused {
        /// Why.
        reason: String,
    },
}

impl Claim {
    /// Of this build.
    pub fn new(process: ProcessId) -> Self {
        Self { version: VERSION, understood: UNDERSTOOD.to_vec(), process }
    }

    /// How this build talks with the sender.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn wire(&self) -> Result<Wire, String> {
        if self.version == VERSION {
            return Ok(Wire::Plain);
        }
        if UNDERSTOOD.contains(&self.version) || self.understood.contains(&VERSION) {
            return Ok(Wire::Described);
        }
        Err(format!(
            "it is of version {VERSION}, which talks with hosts of versions {UNDERSTOOD:?}; yours is {}",
            self.version
        ))
    }
}

/// What a proxy says, in the form that describes itself: with its number, so that one that is not understood still counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said<T> {
    /// Its number; 0 for an answer, which has none.
    #[serde(default)]
    pub seq: u64,
    /// It.
    pub say: T,
}

/// How two sides of a connection write their messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// Bincode: both are of one build.
    #[default]
    Plain,
    /// JSON.
    Described,
}

/// A message that was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard<T> {
    /// It was understood.
    Known(T),
    /// It is of another release, and means nothing to this one: its JSON form.
    Unknown(String),
}

impl Wire {
    /// From whether it describes itself.
    pub fn described(described: bool) -> Self {
        if described { Self::Described } else { Self::Plain }
    }

    /// Whether it describes itself.
    pub fn is_described(self) -> bool {
        self == Self::Described
    }

    fn text(message: &impl Serialize) -> Result<String, CodecError> {
        let error = |error: serde_json::Error| bincode::error::EncodeError::OtherString(error.to_string());
        serde_json::to_string(message).map_err(|why| CodecError::Encode(Box::new(error(why))))
    }

    fn heard<T: DeserializeOwned>(text: String) -> Heard<T> {
        serde_json::from_str(&text).map_or(Heard::Unknown(text), Heard::Known)
    }

    /// As [`encode`].
    ///
    /// # Errors
    /// As [`encode`].
    pub fn encode<T: Serialize>(self, message: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self {
            Self::Plain => encode(message, out),
            Self::Described => encode(&Self::text(message)?, out),
        }
    }

    /// As [`encode_packets`].
    ///
    /// # Errors
    /// As [`encode`].
    pub fn encode_packets<T: Serialize>(self, message: &T) -> Result<Vec<Vec<u8>>, CodecError> {
        match self {
            Self::Plain => encode_packets(message),
            Self::Described => encode_packets(&Self::text(message)?),
        }
    }

    /// As [`Outbox::push`].
    ///
    /// # Errors
    /// As [`encode`].
    pub fn push<T: Serialize>(self, outbox: &mut Outbox, message: &T) -> Result<(), CodecError> {
        match self {
            Self::Plain => outbox.push(message),
            Self::Described => outbox.push(&Self::text(message)?),
        }
    }

    /// As [`Outbox::push_control`].
    ///
    /// # Errors
    /// As [`encode`].
    pub fn push_control<T: Serialize>(self, outbox: &mut Outbox, message: &T) -> Result<(), CodecError> {
        match self {
            Self::Plain => outbox.push_control(message),
            Self::Described => outbox.push_control(&Self::text(message)?),
        }
    }

    /// As [`Inbox::next_message`].
    ///
    /// # Errors
    /// Any [`CodecError`].
    pub fn next_message<T: DeserializeOwned>(self, inbox: &mut Inbox) -> Result<Option<Heard<T>>, CodecError> {
        match self {
            Self::Plain => Ok(inbox.next_message()?.map(Heard::Known)),
            Self::Described => Ok(inbox.next_message::<String>()?.map(Self::heard)),
        }
    }

    /// As [`Assembler::frame`].
    ///
    /// # Errors
    /// Any [`CodecError`].
    pub fn frame<T: DeserializeOwned>(
        self,
        assembler: &mut Assembler,
        frame: &[u8],
    ) -> Result<Option<Heard<T>>, CodecError> {
        match self {
            Self::Plain => Ok(assembler.frame(frame)?.map(Heard::Known)),
            Self::Described => Ok(assembler.frame::<String>(frame)?.map(Self::heard)),
        }
    }
}
