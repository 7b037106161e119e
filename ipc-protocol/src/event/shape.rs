//! Events whose shape has changed, and what they were before: for a while both are appended.

use serde_json::Value;

use super::Event;
use crate::Json;

/// What is known of an event whose payload has had more than one shape.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its `type`.
    pub kind: &'static str,
    /// Tells it from others.
    pub is: fn(&Event) -> bool,
    /// The version that it has now: 2 or more.
    pub version: u32,
    /// While it is in transition: its payload as the version before had it, made of what it is now. `None` from that for an
    /// event that the version before did not have.
    pub older: Option<fn(&Value) -> Option<Value>>,
}

/// The events of this release whose version is not 1.
pub const SHAPES: &[Shape] = &[];

impl Event {
    /// What is appended just before it for readers of the version before, while it is in transition.
    pub fn older(&self, shapes: &[Shape]) -> Option<Self> {
        let Shape { kind, version, older, .. } = shapes.iter().find(|shape| (shape.is)(self))?;
        let older = (*older)?;
        let (_, payload) = self.to_parts().ok()?;
        let payload = Json::from(&older(&payload)?);
        Some(Self::External { kind: (*kind).into(), version: version.saturating_sub(1), payload })
    }
}
