//! Events whose shape has changed, and their older shapes: both are appended for a while.

use serde_json::Value;

use super::Event;
use crate::Json;

/// Description of an event whose payload has had more than one shape.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Value of the event's `type`.
    pub kind: &'static str,
    /// Test for events of this type.
    pub is: fn(&Event) -> bool,
    /// Current version: 2 or more.
    pub version: u32,
    /// Converter of the current payload to that of the version before, during the transition. Returns `None` for an
    /// event that the version before did not have.
    pub older: Option<fn(&Value) -> Option<Value>>,
}

/// Events of this release with a version other than 1.
pub const SHAPES: &[Shape] = &[];

impl Event {
    /// Returns the older form, which is appended just before this event during the transition.
    pub fn older(&self, shapes: &[Shape]) -> Option<Self> {
        let Shape { kind, version, older, .. } = shapes.iter().find(|shape| (shape.is)(self))?;
        let older = (*older)?;
        let (_, payload) = self.to_parts().ok()?;
        let payload = Json::from(&older(&payload)?);
        Some(Self::External { kind: (*kind).into(), version: version.saturating_sub(1), payload })
    }
}
