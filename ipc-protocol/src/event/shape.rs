//! Events whose shape has changed, and their older shapes: both are appended for a while.

use serde_json::Value;

use super::Event;
use crate::Json;

/// Description of an event whose payload has had more than one shape.
#[derive(Clone, Copy, Debug)]
pub struct EventShape {
    /// Value of the event's `type`.
    pub kind: &'static str,
    /// Test for events of this type.
    pub matches: fn(&Event) -> bool,
    /// Current version: 2 or more.
    pub version: u32,
    /// Converter of the current payload to that of the version before, during the transition. Returns `None` for an
    /// event that the version before did not have.
    pub downgrade: Option<fn(&Value) -> Option<Value>>,
}

/// Events of this release with a version other than 1.
pub const SHAPES: &[EventShape] = &[];

impl Event {
    /// Returns the older form, which is appended just before this event during the transition.
    pub fn previous_shape(&self, shapes: &[EventShape]) -> Option<Self> {
        let EventShape { kind, version, downgrade: older, .. } = shapes.iter().find(|shape| (shape.matches)(self))?;
        let older = (*older)?;
        let (_, payload) = self.to_parts().ok()?;
        let payload = Json::from(&older(&payload)?);
        Some(Self::External { kind: (*kind).into(), version: version.saturating_sub(1), payload })
    }
}
