//! Asks an agent and waits for its answer; notifies handlers while an answer grows.

mod reply;
mod stream;
mod turn_stream;

pub(crate) use stream::stream;
pub use stream::{AnswerChunk, SilentHandler, StreamHandler, StreamInfo, StreamOptions};
pub use turn_stream::{TurnStep, TurnStream};
