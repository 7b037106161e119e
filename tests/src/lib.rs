//! What the integration tests share.

pub mod containers;
pub mod detach;
pub mod lasting;
pub mod mock_model;
pub mod namespaces;
pub mod orchard;
pub mod raw;
pub mod real_agents;
pub mod sessions;
pub mod system;
pub mod zoo;
