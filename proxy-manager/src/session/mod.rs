//! One session: what everyone may see of it, and the calls to the task that owns the rest.

mod core;
mod ending;
mod handle;
mod info;
mod listing;
mod pending;
mod prompts;
mod task;
mod turn;

use std::{
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ipc_protocol::{
    AbortPolicy, EndReason, KillOptions, PermissionAnswer, ProcessId, ProcessInfo, ProcessStatus, Receipt, SessionId,
    Signal,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use crate::{
    Deadlines, Error, Result,
    history::{Everyone, History, HistoryLimits, Subscription, Writer},
};

pub use handle::SessionHandle;
pub use info::{SessionInfo, SessionState};
pub(crate) use task::{Fork, Task};
pub use turn::{PromptMode, Turn, TurnEnd};

/// How long a proxy may not answer before it is looked whether somebody has stopped it.
const STOPPED: Duration = Duration::from_millis(500);
/// Commands of each lane that may wait for the session's task.
const LANE: usize = 64;

/// Where an answer goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

/// Who waits for an abort: with processes to be ended there is a receipt.
#[derive(Debug)]
pub(crate) enum AbortReply {
    Done(Reply<()>),
    Receipt(Reply<Receipt>),
}

/// Commands that are sent to the proxy before waiting prompts.
#[derive(Debug)]
pub(crate) enum Control {
    Abort { policy: AbortPolicy, reply: AbortReply },
    Permission { id: String, answer: PermissionAnswer, reply: Reply<()> },
    ListProcesses(Reply<Vec<ProcessInfo>>),
    KillProcess { process: ProcessId, tree: bool, options: KillOptions, reply: Reply<Receipt> },
    KillAll { options: KillOptions, reply: Reply<Receipt> },
    Ping(Reply<()>),
}

/// Commands that keep their order.
pub(crate) enum Say {
    Prompt { text: String, mode: PromptMode, reply: Reply<Turn> },
    Steer { text: String, reply: Reply<()> },
}

/// What is wanted of the session as a whole. A level, not a queue: it waits behind nothing, and asking twice is asking
/// once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Demand {
    /// To live.
    #[default]
    Live,
    /// To end.
    End { options: KillOptions, reason: EndReason, asked: u32 },
    /// The manager is gone: let go of everything at once.
    LetGo,
}

/// What the session shows of its state.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) state: SessionState,
    pub(crate) proxy: Option<ProcessId>,
    pub(crate) agent: Option<ProcessId>,
    pub(crate) turns: u64,
    /// Whether it ever was ready.
    pub(crate) ready: bool,
}

/// What a session is, apart from its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Labels {
    pub(crate) agent: String,
    pub(crate) agent_type: Option<String>,
    pub(crate) user_id: Option<String>,
    pub(crate) workspace_id: Option<String>,
    pub(crate) cwd: String,
}

/// The shared side of a session. It stays when the session has ended.
pub(crate) struct Session {
    id: Arc<SessionId>,
    labels: Labels,
    started_at: SystemTime,
    deadlines: Deadlines,
    history: Arc<History>,
    view: watch::Sender<View>,
    demand: watch::Sender<Demand>,
    control: mpsc::Sender<Control>,
    say: mpsc::Sender<Say>,
}

impl fmt::Debug for Session {
    /// Without its events: prompts are among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("agent", &self.labels.agent)
            .field("state", &self.view.borrow().state)
            .finish_non_exhaustive()
    }
}

/// The task's ends of a [`Session`]'s channels.
#[derive(Debug)]
pub(crate) struct Inlets {
    pub(crate) demand: watch::Receiver<Demand>,
    pub(crate) control: mpsc::Receiver<Control>,
    pub(crate) say: mpsc::Receiver<Say>,
}

impl Session {
    pub(crate) fn new(
        id: SessionId,
        labels: Labels,
        deadlines: Deadlines,
        limits: HistoryLimits,
        everyone: Everyone,
    ) -> (Arc<Self>, Inlets, Writer) {
        let id = Arc::new(id);
        let (history, log) = History::new(id.clone(), limits, everyone);
        let view = View { state: SessionState::Starting, proxy: None, agent: None, turns: 0, ready: false };
        let (demand, demand_inlet) = watch::channel(Demand::Live);
        let (control, control_inlet) = mpsc::channel(LANE);
        let (say, say_inlet) = mpsc::channel(LANE);
        let session = Self {
            id,
            labels,
            started_at: SystemTime::now(),
            deadlines,
            history,
            view: watch::Sender::new(view),
            demand,
            control,
            say,
        };
        (Arc::new(session), Inlets { demand: demand_inlet, control: control_inlet, say: say_inlet }, log)
    }

    pub(crate) fn id(&self) -> &SessionId {
        &self.id
    }

    pub(crate) fn shared_id(&self) -> Arc<SessionId> {
        self.id.clone()
    }

    pub(crate) fn labels(&self) -> &Labels {
        &self.labels
    }

    pub(crate) fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    pub(crate) fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Changes what the session shows.
    pub(crate) fn show(&self, change: impl FnOnce(&mut View)) {
        self.view.send_modify(change);
    }

    /// Whether it ended without ever being ready.
    pub(crate) fn is_stillborn(&self) -> bool {
        let view = self.view.borrow();
        !view.ready && matches!(view.state, SessionState::Ended { .. })
    }

    /// How it ended; `None` while it lives.
    pub(crate) fn ended(&self) -> Option<(EndReason, Option<Box<Receipt>>)> {
        match &self.view.borrow().state {
            SessionState::Ended { reason, receipt } => Some((reason.clone(), receipt.clone())),
            _ => None,
        }
    }

    pub(crate) fn info(&self) -> SessionInfo {
        let View { state, proxy, agent, turns, .. } = self.view.borrow().clone();
        let labels = self.labels.clone();
        SessionInfo {
            session_id: self.id().clone(),
            agent: labels.agent,
            agent_type: labels.agent_type,
            user_id: labels.user_id,
            workspace_id: labels.workspace_id,
            cwd: labels.cwd,
            state,
            proxy,
            agent_process: agent,
            turns,
            started_at: self.started_at,
            last_offset: self.history.last_offset(),
        }
    }

    pub(crate) fn subscribe(&self) -> Subscription {
        Subscription::one(self.history.clone(), self.history.first_offset())
    }

    pub(crate) fn subscribe_from(&self, from: u64) -> Subscription {
        Subscription::one(self.history.clone(), from.saturating_add(1))
    }

    pub(crate) async fn prompt(&self, text: String, mode: PromptMode) -> Result<Turn> {
        self.call("prompting", Duration::ZERO, &self.say, |reply| Say::Prompt { text, mode, reply }).await
    }

    pub(crate) async fn steer(&self, text: String) -> Result<()> {
        self.call("steering", Duration::ZERO, &self.say, |reply| Say::Steer { text, reply }).await
    }

    pub(crate) async fn abort(&self, policy: AbortPolicy) -> Result<Option<Receipt>> {
        const WHAT: &str = "aborting the turn";
        match policy {
            AbortPolicy::LeaveProcesses => {
                let command = |reply| Control::Abort { policy, reply: AbortReply::Done(reply) };
                self.call(WHAT, Duration::ZERO, &self.control, command).await.map(|()| None)
            }
            AbortPolicy::KillTurnProcesses => {
                let command = |reply| Control::Abort { policy, reply: AbortReply::Receipt(reply) };
                let grace = KillOptions::default().grace;
                proven(self.waking_proxy(self.call(WHAT, grace, &self.control, command)).await?).map(Some)
            }
        }
    }

    pub(crate) async fn respond_permission(&self, id: &str, answer: PermissionAnswer) -> Result<()> {
        let id = id.to_owned();
        let command = |reply| Control::Permission { id, answer, reply };
        self.call("answering a permission request", Duration::ZERO, &self.control, command).await
    }

    pub(crate) async fn ping(&self) -> Result<()> {
        self.call("pinging the proxy", Duration::ZERO, &self.control, Control::Ping).await
    }

    pub(crate) async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        let listed = self.call("listing processes", Duration::ZERO, &self.control, Control::ListProcesses).await;
        // A session that ended meanwhile has none.
        if listed.is_err() && self.ended().is_some() { Ok(Vec::new()) } else { listed }
    }

    /// Waits for an answer that only the proxy can give: if somebody stops it, it is continued.
    async fn waking_proxy<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = std::pin::pin!(answer);
        loop {
            self.wake_proxy();
            // The answer has a deadline of its own.
            if let Ok(answer) = timeout(STOPPED, &mut answer).await {
                return answer;
            }
        }
    }

    fn wake_proxy(&self) {
        let Some(proxy) = self.info().proxy else { return };
        if registry::look(proxy.pid).is_ok_and(|seen| seen.is_some_and(|seen| seen.is_stopped && seen.id == proxy)) {
            tracing::warn!(%proxy, "the proxy was stopped by somebody: it is continued");
            // It fails only for one that is gone.
            let _ = registry::PidFd::open(proxy).and_then(|proxy| proxy.signal(Signal::Cont));
        }
    }

    pub(crate) async fn kill_all(&self, options: KillOptions) -> Result<Receipt> {
        let command = |reply| Control::KillAll { options, reply };
        let call = self.call("killing the agent's processes", options.grace, &self.control, command);
        proven(self.waking_proxy(call).await?)
    }

    pub(crate) async fn kill_process(&self, pid: u32, tree: bool, options: KillOptions) -> Result<Receipt> {
        let command = Control::ListProcesses;
        let processes = self.call("looking up the process", Duration::ZERO, &self.control, command).await?;
        let running = |info: &&ProcessInfo| info.id.pid == pid && info.status == ProcessStatus::Running;
        let Some(process) = processes.iter().find(running).map(|info| info.id) else {
            return Err(Error::UnknownProcess { session: self.id().clone(), pid });
        };
        let command = |reply| Control::KillProcess { process, tree, options, reply };
        let call = self.call("killing a process", options.grace, &self.control, command);
        proven(self.waking_proxy(call).await?)
    }

    /// Asks the session to end. It will, whoever waits for it.
    pub(crate) fn demand_end(&self, options: KillOptions, reason: EndReason) {
        self.demand.send_modify(|demand| match demand {
            Demand::LetGo => {}
            Demand::Live => *demand = Demand::End { options, reason, asked: 1 },
            // The first reason stays; the shortest grace counts.
            Demand::End { options: known, asked, .. } => {
                known.grace = known.grace.min(options.grace);
                *asked = asked.wrapping_add(1);
            }
        });
    }

    /// The manager is gone.
    pub(crate) fn let_go(&self) {
        self.demand.send_replace(Demand::LetGo);
    }

    /// Ends the session and says what was ended. On an ended session: what was ended then.
    pub(crate) async fn kill(&self, options: KillOptions, reason: EndReason) -> Result<Receipt> {
        if self.ended().is_none() {
            self.demand_end(options, reason);
        }
        self.end_within(self.longest_kill(options)).await
    }

    /// How long a kill may take: the proxy's try, then the fork server's.
    pub(crate) fn longest_kill(&self, options: KillOptions) -> Duration {
        let Deadlines { wedged, kill, .. } = self.deadlines;
        options.grace.saturating_mul(2).saturating_add(wedged).saturating_add(kill)
    }

    /// Waits for the end that was asked for.
    pub(crate) async fn end_within(&self, deadline: Duration) -> Result<Receipt> {
        let mut view = self.view.subscribe();
        let ended = view.wait_for(|view| matches!(view.state, SessionState::Ended { .. }));
        if timeout(deadline, ended).await.is_err() {
            return Err(Error::Deadline { operation: format!("killing session {}", self.id), after: deadline });
        }
        match self.ended() {
            Some((_, Some(receipt))) => proven(*receipt),
            _ => Err(self.over()),
        }
    }

    /// Sends a command to the session's task and waits for the answer.
    async fn call<C, T>(
        &self,
        operation: &str,
        extra: Duration,
        lane: &mpsc::Sender<C>,
        command: impl FnOnce(Reply<T>) -> C,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let after = self.deadlines.control.saturating_add(extra);
        let exchange = async {
            // Either fails only when the task is gone.
            if lane.send(command(reply)).await.is_err() {
                return Err(self.over());
            }
            answer.await.unwrap_or_else(|_| Err(self.over()))
        };
        within(after, exchange)
            .await
            .unwrap_or_else(|| Err(Error::Deadline { operation: format!("{operation} in session {}", self.id), after }))
    }

    /// Why a call to an ended session fails.
    fn over(&self) -> Error {
        let session = self.id().clone();
        match self.ended() {
            None | Some((EndReason::Shutdown, _)) => Error::ShutDown,
            Some((reason, _)) => Error::Ended { session, reason: reason.to_string() },
        }
    }
}

async fn within<T>(after: Duration, future: impl Future<Output = T>) -> Option<T> {
    timeout(after, future).await.ok()
}

/// A receipt is a success only if nothing is left.
fn proven(receipt: Receipt) -> Result<Receipt> {
    if receipt.is_empty() { Ok(receipt) } else { Err(Error::Survivors(Box::new(receipt))) }
}

#[cfg(test)]
mod tests;
