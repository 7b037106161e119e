//! A process of the same user that nobody has a reason to signal.

use std::process::{Child, Command, Stdio};

/// A process that dies of any signal. It ends with this value, and with this process.
pub struct Bystander(Child);

impl Bystander {
    /// Starts it. To be called under [`super::STARTING`].
    ///
    /// # Errors
    /// The system's.
    #[expect(clippy::disallowed_methods, reason = "the code under test shall not know of it")]
    pub fn start() -> std::io::Result<Self> {
        Command::new(zoo::PROGRAM).arg(":bystander").stdin(Stdio::piped()).spawn().map(Self)
    }

    /// Checks that it has got no signal.
    ///
    /// # Errors
    /// How it ended.
    pub fn is_well(&mut self) -> Result<(), String> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("a process that is none of the session's was signalled: {status}")),
            Err(error) => Err(format!("waiting for the bystander: {error}")),
        }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
