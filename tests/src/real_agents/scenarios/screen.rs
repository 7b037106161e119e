//! The agent's own screen beside its protocol.

use std::{num::NonZeroU16, sync::Arc, time::Duration};

use proxy_manager::{
    AgentSessionConfig, Envelope, Event, SessionHandle, SessionId, Signal,
    terminal::{FromTerminal, KeyboardWish, Surface, TerminalSize, TerminalViewer, ToTerminal},
};
use registry::PidFd;

use super::{Ran, answers::ended_well, ensure, turns::remembers};
use crate::real_agents::{Failure, Stage, Verdict, session::within};

/// Words in the commands of screens that are programs of their own.
const SCREENS: [&str; 2] = ["attach", "--remote"];

/// Size of the screen.
const ROWS: NonZeroU16 = NonZeroU16::new(40).expect("it is not 0");
const COLUMNS: NonZeroU16 = NonZeroU16::new(120).expect("it is not 0");

/// Attempts to type a word, and the time that each has.
pub(super) const ATTEMPTS: u32 = 10;
pub(super) const ATTEMPT: Duration = Duration::from_secs(3);

/// Viewer of a screen, with what it shows.
pub(super) struct Watched {
    viewer: TerminalViewer,
    screen: vt100::Parser,
}

impl Watched {
    /// Waits until the screen shows a word.
    pub(super) async fn shows(&mut self, word: &str) -> Result<(), Failure> {
        let Self { viewer, screen } = self;
        let what = format!("{word:?} on the screen");
        let ended = within(&what, async {
            while !screen.screen().contents().contains(word) {
                match viewer.next().await {
                    Some(FromTerminal::Frame { bytes, .. }) => screen.process(&bytes),
                    Some(FromTerminal::Refused(error)) => return Some(error.to_string()),
                    Some(FromTerminal::Ended { .. }) | None => return Some("the screen ended".to_owned()),
                    Some(_) => {}
                }
            }
            None
        });
        match ended.await {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(Failure::Wrong(why)),
            Err(_) => Err(Failure::Wrong(format!("no {word:?} on the screen: {}", screen.screen().contents()))),
        }
    }

    pub(super) async fn types(&mut self, keys: &str) -> Result<(), Failure> {
        self.viewer.send(&ToTerminal::Input(keys.into())).await.map_err(|error| Failure::Wrong(error.to_string()))
    }

    /// Returns what the screen shows.
    pub(super) fn text(&self) -> String {
        self.screen.screen().contents()
    }

    /// Types a word again and again, until the screen shows it: some programs drop what comes while they begin.
    pub(super) async fn types_until_shown(&mut self, word: &str) -> Result<(), Failure> {
        self.types_until(word, word).await
    }

    /// Presses Enter again and again, until the screen shows this: without any text it does nothing.
    pub(super) async fn enters_until_shown(&mut self, text: &str) -> Result<(), Failure> {
        self.types_until("\r", text).await
    }

    async fn types_until(&mut self, keys: &str, text: &str) -> Result<(), Failure> {
        for _ in 0..ATTEMPTS {
            self.types(keys).await?;
            if let Ok(shown) = tokio::time::timeout(ATTEMPT, self.shows(text)).await {
                return shown;
            }
        }
        Err(Failure::Wrong(format!("no {text:?} on the screen: {}", self.screen.screen().contents())))
    }
}

/// Size of the screen.
pub(super) fn screen_size() -> TerminalSize {
    TerminalSize::bounded(ROWS.get(), COLUMNS.get())
}

pub(super) async fn attached(handle: &SessionHandle) -> Result<Watched, Failure> {
    let mut viewer = within("a viewer's connection", handle.view_terminal()).await??;
    let (size, keyboard) = (screen_size(), KeyboardWish::Type);
    let attach = ToTerminal::Attach { size, keyboard, in_place: false };
    viewer.send(&attach).await.map_err(|error| Failure::Wrong(error.to_string()))?;
    Ok(Watched { viewer, screen: vt100::Parser::new(ROWS, COLUMNS, 0) })
}

/// Counts the prompts that were typed on the screen; and whether all that is about them is marked as the screen's.
pub(super) fn of_screen(seen: &[Arc<Envelope>], word: &str) -> (usize, bool) {
    let is_prompt = |event: &Event| matches!(event, Event::TerminalPrompted { text } if text.contains(word));
    let is_answer = |event: &Event| matches!(event, Event::Text { text } if text.contains(word));
    let marked = |envelope: &Arc<Envelope>| envelope.surface() == Some(Surface::Terminal);
    let are_marked = seen.iter().filter(|seen| is_prompt(&seen.event) || is_answer(&seen.event)).all(marked);
    (seen.iter().filter(|envelope| is_prompt(&envelope.event)).count(), are_marked)
}

/// Returns all text of the answers.
pub(super) fn text_of(seen: &[Arc<Envelope>]) -> String {
    let text = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::Text { text } => Some(text.clone()),
        _ => None,
    };
    seen.iter().filter_map(text).collect()
}

pub(super) async fn screen(stage: Arc<Stage>) -> Ran {
    // A socket's path is short.
    let unique = SessionId::mint().to_string().split_off(24);
    let session_id = unique.parse().map_err(|error| Failure::Wrong(format!("an id: {error}")))?;
    let config = AgentSessionConfig { session_id, surface: Some(Surface::Both), ..stage.config() };
    let mut session = stage.start(config).await?;
    session.ask("good morning").await?;
    let mut viewer = attached(&session.handle).await?;
    viewer.shows("morning").await?;
    let told = session.ask("zebra").await?;
    ensure!(told.text.contains("you said: zebra"), "the turn while the screen is shown: {told:?}");
    viewer.shows("zebra").await?;
    viewer.types("giraffe").await?;
    viewer.shows("giraffe").await?;
    viewer.types("\r").await?;
    let prompted = session.until("the prompt of the screen", |event| match event {
        Event::TerminalPrompted { text } => Some(text.clone()),
        _ => None,
    });
    let prompted = prompted.await?;
    ensure!(prompted == "giraffe", "another prompt: {prompted:?}");
    let mut text = String::new();
    let turn = session.until("the end of the screen's turn", |event| {
        if let Event::Text { text: more } = event {
            text.push_str(more);
        }
        matches!(event, Event::Complete { .. }).then_some(())
    });
    turn.await?;
    ensure!(text.contains("you said: giraffe"), "the screen's turn: {text:?}");
    ended_well(&session.ask("and the lion").await?)?;
    ensure!(remembers(&stage, "giraffe", "and the lion"), "the model was not told of the screen's turn");
    let (prompts, are_marked) = of_screen(&session.seen, "giraffe");
    ensure!(prompts == 1 && are_marked, "{prompts} prompts of the screen, all marked: {are_marked}");
    if stage.agent.id != "pi" {
        session.begin("slow: 60").await?;
        session.counting().await?;
        let processes = within("the processes", session.handle.processes()).await??;
        let is_screen = |args: &[String]| args.iter().any(|word| SCREENS.contains(&word.as_str()));
        let screens: Vec<_> = processes.iter().filter(|process| is_screen(&process.args)).collect();
        ensure!(!screens.is_empty(), "no screen among {processes:?}");
        for screen in screens {
            // One may be the parent of another, and be gone by now.
            let _ = PidFd::open(screen.id).and_then(|screen| screen.signal(Signal::Kill));
        }
        let told = session.finish().await?;
        ensure!(told.text.contains("59 60"), "the turn when the screen was killed: {told:?}");
    }
    Ok(Verdict::Pass)
}
