//! What the integration tests share.

pub mod mock_model;
pub mod raw;
pub mod sessions;
pub mod system;
pub mod zoo;
