//! What each agent is put through.

mod answers;
mod errors;
mod given;
mod home_copy;
mod killing;
mod looks;
mod modes;
mod operations;
mod resume;
mod screen;
mod secrets;
mod tools;
mod turns;
mod verbatim;
mod visit;

use std::{future::Future, path::Path, pin::Pin, sync::Arc};

use proxy_manager::AgentSpec;

use super::{Failure, Stage, Verdict, recorder};

/// One of them.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name in the table.
    pub name: &'static str,
    /// What it shows, in a line.
    pub shows: &'static str,
    /// Runs it.
    pub run: fn(Arc<Stage>) -> Running,
    /// Changes the agent's row first; the path is the cell's folder.
    pub change: fn(&mut AgentSpec, &Path),
}

/// A scenario that runs.
pub type Running = Pin<Box<dyn Future<Output = Ran> + Send>>;

/// What a scenario comes to.
pub type Ran = Result<Verdict, Failure>;

/// All of them, in the order of the table.
pub const SCENARIOS: &[Scenario] = &[
    plain("text", "an answer in pieces", |stage| Box::pin(answers::text(stage))),
    plain("thinking", "the model's thoughts, apart from its text", |stage| Box::pin(answers::thinking(stage))),
    plain("tool", "a call with its input and its output", |stage| Box::pin(tools::tool(stage))),
    plain("parallel tools", "two calls of one answer", |stage| Box::pin(tools::parallel(stage))),
    plain("permission allow", "nothing runs before it is allowed", |stage| Box::pin(tools::allow(stage))),
    plain("permission deny", "nothing runs, and the session goes on", |stage| Box::pin(tools::deny(stage))),
    plain("policy deny", "a policy refuses, and nothing runs", |stage| Box::pin(tools::policy_deny(stage))),
    plain("policy read only", "a policy lets only reading through", |stage| Box::pin(tools::policy_read_only(stage))),
    plain("each mode", "each permission mode and a tool that writes, also with the newest wrapper", |stage| {
        Box::pin(modes::each_mode(stage))
    }),
    plain("own login", "the same with its id alone, and a user's login and settings that allow everything", |stage| {
        Box::pin(modes::own_login(stage))
    }),
    plain("several requests", "each has its own answer", |stage| Box::pin(tools::several(stage))),
    plain("abort", "the turn ends as cancelled, and the next one works", |stage| Box::pin(turns::abort(stage))),
    plain("abort tool", "an abort ends what the turn started", |stage| {
        Box::pin(turns::trap_an_abort_leaves_the_tool_running(stage))
    }),
    plain("held output", "what a tool left behind holds its output", |stage| {
        Box::pin(turns::trap_a_tool_hangs_while_its_output_is_held(stage))
    }),
    plain("abort asking", "an abort with a permission request open", |stage| Box::pin(turns::abort_asking(stage))),
    plain("second prompt", "a queued prompt, with the first in its context", |stage| Box::pin(turns::second(stage))),
    plain("steer", "a word in the running turn", |stage| Box::pin(turns::steer(stage))),
    plain("resume", "the conversation goes on in a new process", |stage| Box::pin(resume::resume(stage))),
    plain("resume recent", "the most recent conversation of the directory goes on", |stage| {
        Box::pin(resume::recent(stage))
    }),
    plain("resume missing", "no conversation, no fresh one", |stage| Box::pin(resume::missing(stage))),
    plain("resume broken", "a broken conversation is no fresh one", |stage| Box::pin(resume::broken(stage))),
    plain("start anew", "no conversation, and a fresh one is wanted", |stage| Box::pin(resume::anew(stage))),
    plain("give history", "no conversation, and a fresh one is told of it", |stage| Box::pin(resume::inject(stage))),
    plain("fork", "a copy goes on, the original stays", |stage| Box::pin(resume::fork(stage))),
    plain("list sessions", "its own conversations", |stage| Box::pin(resume::list(stage))),
    plain("usage", "tokens of each turn", |stage| Box::pin(answers::usage(stage))),
    plain("context window", "how full it is", |stage| Box::pin(answers::context_window(stage))),
    plain("diff", "a file is made and edited", |stage| Box::pin(looks::diff(stage))),
    plain("commands", "slash commands, and one that is called", |stage| Box::pin(looks::slash_commands(stage))),
    plain("title", "a title of the conversation", |stage| Box::pin(looks::title(stage))),
    plain("plan", "the steps of a plan", |stage| Box::pin(looks::plan(stage))),
    plain("subagents", "text and tool calls of a sub-agent, with the call that started it", |stage| {
        Box::pin(looks::subagents(stage))
    }),
    plain("live output", "output of a tool while it runs", |stage| Box::pin(looks::live_output(stage))),
    plain("cost", "its own cost, else one by prices", |stage| Box::pin(looks::cost(stage))),
    plain("input tokens", "all input, with the part from a cache", |stage| Box::pin(looks::input_tokens(stage))),
    plain("model in use", "the model, without being asked", |stage| Box::pin(looks::model_in_use(stage))),
    plain("mode in use", "the mode, without being asked", |stage| Box::pin(looks::mode_in_use(stage))),
    plain("thinking in use", "how hard it thinks, without being asked", |stage| {
        Box::pin(looks::thinking_in_use(stage))
    }),
    plain("model", "the model of the session", |stage| Box::pin(answers::model(stage))),
    plain("set model", "another model from now on", |stage| Box::pin(operations::set_model(stage))),
    plain("set thinking", "how hard it thinks", |stage| Box::pin(operations::set_thinking(stage))),
    plain("mode", "plan, and back", |stage| Box::pin(operations::mode(stage))),
    plain("image", "a picture in the prompt", |stage| Box::pin(answers::image(stage))),
    plain("file", "a file that the prompt points at", |stage| Box::pin(given::file(stage))),
    plain("system prompt", "the model is told", |stage| Box::pin(given::system_prompt(stage))),
    plain("tools", "those that it is given, and no other", |stage| Box::pin(given::tools_given(stage))),
    plain("mcp server", "the model calls its tool", |stage| Box::pin(given::mcp(stage))),
    plain("mcp http", "the same, by HTTP", |stage| Box::pin(given::mcp_http(stage))),
    plain("ephemeral", "nothing of the conversation is kept", |stage| Box::pin(given::ephemeral(stage))),
    plain("state", "its own state", |stage| Box::pin(operations::state(stage))),
    plain("messages", "the conversation so far", |stage| Box::pin(operations::messages(stage))),
    plain("compact", "the conversation is shortened", |stage| Box::pin(operations::compact(stage))),
    plain("compact by words", "the summary has the caller's instructions", |stage| {
        Box::pin(operations::compact_with(stage))
    }),
    plain("home copy", "the user's login and a skill in a home of its own", |stage| {
        Box::pin(home_copy::home_copy(stage))
    }),
    plain("native", "a command of its own protocol", |stage| Box::pin(operations::native(stage))),
    plain("error 400", "the turn fails, and the next one works", |stage| Box::pin(errors::refused(stage))),
    plain("error 429", "it is tried again, and told", |stage| Box::pin(errors::rate_limited(stage))),
    plain("429 once", "the second attempt answers", |stage| Box::pin(errors::rate_limited_once(stage))),
    plain("error 500", "it is tried again, and told", |stage| Box::pin(errors::broken(stage))),
    plain("default clocks", "a model that fails for good, and the clocks that users have", |stage| {
        Box::pin(errors::default_clocks(stage))
    }),
    plain("cut", "the answer breaks off, once", |stage| Box::pin(errors::cut(stage))),
    plain("cut for good", "the answer breaks off, and the next turn works", |stage| {
        Box::pin(errors::cut_for_good(stage))
    }),
    plain("kill foreground", "in the midst of a tool with children", |stage| {
        Box::pin(killing::trap_tools_are_in_sessions_of_their_own(stage))
    }),
    plain("agent killed", "what it leaves when it is killed alone", |stage| {
        Box::pin(killing::trap_a_nested_agent_outlives_its_wrapper(stage))
    }),
    plain("proxy killed", "its agent's input closes, and nothing is left", |stage| {
        Box::pin(killing::trap_agents_go_on_without_their_input(stage))
    }),
    plain("kill background", "what a tool left behind", |stage| Box::pin(killing::background(stage))),
    plain("kill setsid", "what a tool left behind in a session of its own", |stage| Box::pin(killing::setsid(stage))),
    Scenario {
        name: "verbatim",
        shows: "the bytes that it wrote",
        run: |stage| Box::pin(verbatim::verbatim(stage)),
        change: recorder::record,
    },
    plain("key", "the key is nowhere", |stage| Box::pin(secrets::trap_tools_see_the_api_key(stage))),
    plain("screen", "prompts and its own screen at once, and a turn outlives the screen", |stage| {
        Box::pin(screen::screen(stage))
    }),
    plain("visit", "a turn on its own screen, and back: told once, and remembered", |stage| {
        Box::pin(visit::visit(stage))
    }),
];

const fn plain(name: &'static str, shows: &'static str, run: fn(Arc<Stage>) -> Running) -> Scenario {
    Scenario { name, shows, run, change: |_, _| {} }
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scenario").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Fails with what is given, formatted, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err($crate::real_agents::Failure::Wrong(format!($($what)+)));
        }
    };
}
use ensure;
