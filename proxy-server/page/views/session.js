// A session: its head, its tabs, and the one stream of events that all of them are drawn from.
import { html, Component, signal, batch, useState, StateBadge, ScreenBadge, Bar, attempt, toast, ask, now } from "../lib/ui.js";
import { get, post, call, follow, segment } from "../lib/api.js";
import { sessions, loaded, titleOf, stateOf, refresh, isLive, isOver, valuesOf } from "../lib/state.js";
import { Conversation, reasonText } from "../lib/conversation.js";
import { keys } from "../lib/keys.js";
import { go, sessionLink } from "../lib/route.js";
import { safe, bytes, clock, count, cost, percent, age } from "../lib/text.js";
import { ConversationView } from "./conversation.js";
import { Processes } from "./processes.js";
import { Events } from "./events.js";
import { Changes } from "./changes.js";
import { kill, KillPanel } from "./kill.js";
import { Receipt } from "./receipt.js";

const TABS = [["conversation", "Conversation", "1"], ["processes", "Processes", "2"], ["events", "Events", "3"], ["terminal", "Terminal", "4"], ["changes", "Changes", "5"]];
/** Longest time that events are taken for in one frame, in milliseconds. */
const SLICE = 10;

export class Session extends Component {
  constructor({ id }) {
    super();
    this.model = new Conversation();
    this.link = signal("connecting");
    this.problem = signal(null);
    this.terminal = null;
    this.waiting = [];
    this.at = 0;
    this.frame = null;
    this.id = id;
  }

  componentDidMount() {
    this.stop = follow(`v1/sessions/${segment(this.id)}/events`, {
      query: { raw: false, from: 0 },
      onEvents: (events) => { this.waiting.push(...events); this.schedule(); },
      onState: (state, problem) => { this.link.value = state; this.problem.value = problem ?? null; },
    });
    this.removers = [
      ...TABS.map(([tab, title, key]) => keys.add(`alt+${key}`, title, () => go(sessionLink(this.id, tab)))),
      keys.add("K", "Kill the session", () => this.endSession()),
      keys.add("u", "Back to the sessions", () => go("#/")),
    ];
  }

  componentDidUpdate(before) {
    // On a phone not all of them are in sight.
    if (before.tab !== this.props.tab) this.tabs?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  componentWillUnmount() {
    this.stop?.();
    clearTimeout(this.frame);
    this.removers?.forEach((remove) => remove());
  }

  schedule() {
    if (this.frame === null) this.frame = setTimeout(() => requestAnimationFrame(() => this.flush()), document.hidden ? 300 : 30);
    // A hidden page has no frames.
    if (document.hidden) { clearTimeout(this.frame); this.frame = setTimeout(() => this.flush(), 300); }
  }

  /** Takes what has come, for a part of a frame. */
  flush() {
    this.frame = null;
    const until = performance.now() + SLICE;
    let relevant = false;
    batch(() => {
      while (this.at < this.waiting.length && performance.now() < until) {
        const event = this.waiting[this.at++];
        this.model.take(event);
        relevant ||= /^(session|turn|permission|terminal):/.test(event.type);
      }
    });
    if (this.at >= this.waiting.length) { this.waiting = []; this.at = 0; } else this.schedule();
    if (relevant) refresh();
  }

  async endSession() {
    const session = sessions.value.get(this.id);
    if (!session || !isLive(session)) return;
    if (await ask(`End the session ${safe(titleOf(session) ?? this.id, 100)}, and every process that it has started?`, "Kill the session")) kill(this.id, { kind: "session" }, this.model);
  }

  async loadTerminal() {
    if (this.isLoadingTerminal) return;
    this.isLoadingTerminal = true;
    try {
      this.terminal = (await import("./terminal.js")).Terminal;
    } catch (error) {
      this.terminalProblem = error.message;
    }
    this.isLoadingTerminal = false;
    // A state that is the same draws nothing.
    this.setState({ terminal: this.terminal, problem: this.terminalProblem });
  }

  render({ id, tab, query }) {
    const session = sessions.value.get(id);
    if (!session && loaded.value && this.problem.value) {
      return html`<div class="empty"><p class="error" role="alert">${safe(this.problem.value.message, 400)}</p><p><a href="#/">All sessions</a></p></div>`;
    }
    const ended = this.model.ended.value;
    if (tab === "terminal" && !this.terminal && !this.terminalProblem) this.loadTerminal();
    const shared = { id, session, model: this.model, query };
    return html`<section class="session-view" aria-label=${`Session ${safe(id, 80)}`}>
      <${SessionHead} id=${id} session=${session} model=${this.model} link=${this.link.value} onKill=${() => this.endSession()}/>
      <nav class="tabs" aria-label="Views of the session" ref=${(node) => { this.tabs = node; }}>${TABS.filter(([name]) => name !== "changes" || tab === name || this.model.workspace.value).map(([name, title]) => html`<a key=${name} href=${sessionLink(id, name === "conversation" ? "" : name)} ...${tab === name ? { "aria-current": "page" } : {}}>${title}</a>`)}
        <${Link} state=${this.link.value}/></nav>
      ${ended && tab !== "terminal" && html`<${EndedStrip} ended=${ended}/>`}
      <${Handover} id=${id} session=${session} tab=${tab} viewers=${this.model.viewers.value.length} visit=${this.model.visit.value}/>
      ${tab === "processes" ? html`<${Processes} ...${shared}/>`
        : tab === "events" ? html`<${Events} ...${shared}/>`
        : tab === "changes" ? html`<${Changes} ...${shared}/>`
        : tab === "terminal" ? (this.terminal ? html`<${this.terminal} ...${shared}/>` : html`<p class="empty" aria-busy="true">${this.terminalProblem ?? "Loading the terminal…"}</p>`)
        : html`<${ConversationView} ...${shared}/>`}
      <${KillPanel}/>
    </section>`;
  }
}

/** How the stream of events is. */
function Link({ state }) {
  const text = { connecting: "connecting…", live: "live", lost: "connection lost; trying again…", paused: "paused", over: "", refused: "" }[state];
  return html`<span class=${`link link-${state}`} role="status">${text}</span>`;
}

function EndedStrip({ ended }) {
  const [open, setOpen] = useState(false);
  return html`<div class="strip"><p class="row"><strong>Ended:</strong> <bdi class="grow">${safe(reasonText(ended.reason), 400)}</bdi>
    ${ended.receipt && html`<button type="button" class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Hide the receipt" : "Receipt"}</button>`}</p>
    ${open && html`<${Receipt} receipt=${ended.receipt}/>`}</div>`;
}

/** Banner of a session whose conversation somebody continues elsewhere, or that somebody drives on its screen. */
function Handover({ id, session, tab, viewers, visit }) {
  if (!session) return null;
  const handed = stateOf(session) === "handedOver";
  const visited = visit && isLive(session);
  const watched = isLive(session) && viewers > 0;
  if (!handed && !visited && !(watched && tab !== "terminal")) return null;
  const there = viewers === 0 ? "Nobody is at it now" : viewers === 1 ? "One person is at it" : `${viewers} people are at it`;
  const text = handed ? "This session is handed over: somebody goes on with its conversation in the agent's own program."
    : visited ? `${safe(visit.by ?? "Somebody", 60)} has opened the agent's own screen (${clock(visit.at)}). ${there}. Prompts wait until it is taken back.`
    : `${viewers === 1 ? "Somebody is" : `${viewers} people are`} at the terminal of this session.`;
  return html`<div class=${`strip row wrap ${handed || visited ? "strip-warn" : ""}`} role="status"><span class="grow"><bdi>${text}</bdi></span>
    ${!handed && tab !== "terminal" && html`<a class="button" href=${sessionLink(id, "terminal")}>Watch</a>`}
    ${(handed || visited) && html`<button type="button" class="primary" onClick=${() => attempt(() => post(`v1/sessions/${segment(id)}/take-back`, {}, { timeout: 60_000 }).then(refresh), "Taken back")}>Take back</button>`}</div>`;
}

function SessionHead({ id, session, model, link, onKill }) {
  const title = model.title.value ?? (session ? titleOf(session) : null);
  const settings = model.settings.value;
  const context = model.context.value;
  // The session's is that of all turns; an event's may be of a part.
  const usage = session?.metrics?.usage ?? model.usage.value;
  const use = session && isLive(session) ? session.processUse : null;
  const limits = (model.measures.value ?? session?.measures)?.limits ?? [];
  const memory = limits.find((limit) => limit.limit === "memory");
  const state = session ? stateOf(session) : null;
  const live = session && isLive(session);
  return html`<header class="session-head">
    <div class="row">
      <h1><bdi>${safe(title ?? id, 200)}</bdi></h1>
      ${state && html`<${StateBadge} state=${state} session=${session}/>`}
      ${live && html`<${ScreenBadge} session=${session} detail=${model.screen.value}/>`}
      <span class="spacer"></span>
      <${Menu} id=${id} session=${session} model=${model}/>
      ${live && html`<button type="button" class="danger-quiet" onClick=${onKill} title="Shift K">Kill<span class="wide-only"> session</span></button>`}
    </div>
    <div class="facts">
      ${title && html`<span class="dim mono">${safe(id, 80)}</span>`}
      ${session && html`<span><span class="dim">agent</span> ${safe(session.agent, 40)}</span>`}
      ${session && html`<${Setting} id=${id} name="model" label="model" value=${settings.model ?? session.currentModel ?? session.model} live=${live} choices=${() => valuesOf(session.agent, "model")} operation=${(value) => ({ setModel: { model: value } })}/>`}
      ${session && html`<${Setting} id=${id} name="mode" label="mode" value=${settings.mode ?? session.currentMode ?? session.mode} live=${live} choices=${() => valuesOf(session.agent, "mode", ["build", "plan"])} operation=${(value) => ({ setMode: { mode: value } })}/>`}
      ${session && html`<${Setting} id=${id} name="thinking" label="thinking" value=${settings.thinking ?? session.currentThinking ?? session.thinking} live=${live} choices=${() => valuesOf(session.agent, "thinking", ["off", "low", "medium", "high"])} operation=${(value) => ({ setThinking: { level: value } })}/>`}
      ${session?.userId && html`<span><span class="dim">user</span> <bdi>${safe(session.userId, 40)}</bdi></span>`}
      ${session?.cwd && html`<span class="mono wide-only" title="Directory"><bdi>${safe(session.cwd, 300)}</bdi></span>`}
    </div>
    <div class="meters">
      ${context ? html`<${Bar} value=${context.used} max=${context.size} label=${`context ${count(context.used)} / ${count(context.size)}`} title=${`Context window: ${context.used} of ${context.size} tokens`}/>` : null}
      ${memory && use ? html`<${Bar} value=${use.rssBytes} max=${memory.value} label=${`memory ${bytes(use.rssBytes)} / ${bytes(memory.value)}`} title="Memory beside its limit"/>` : use && html`<span><span class="dim">memory</span> ${bytes(use.rssBytes)}</span>`}
      ${use && html`<span><span class="dim">CPU</span> ${percent(use.cpuPercent)}</span><span><span class="dim">processes</span> ${use.processes}</span>`}
      <${UsageBar} usage=${usage}/>
      ${usage?.costUsd != null && html`<span title=${usage.costSource === "prices" ? "by the user's prices" : "as the agent tells"}><span class="dim">cost</span> ${cost(usage.costUsd)}</span>`}
      ${session && html`<span><span class="dim">turns</span> ${session.turns}</span><span><span class="dim">age</span> ${age(now.value - Date.parse(session.startedAt))}</span>`}
    </div></header>`;
}

/** Tokens of all turns: what came from a cache, the rest of what was read, and what was written, as parts of a bar. */
function UsageBar({ usage }) {
  const { inputTokens: input = null, outputTokens: output = null } = usage ?? {};
  if (input === null && output === null) return null;
  const cached = Math.min(input ?? 0, usage.cachedInputTokens ?? 0);
  const all = (input ?? 0) + (output ?? 0);
  const part = (name, tokens) => html`<span class=${`bar-part bar-${name}`} style=${{ width: `${all > 0 ? (tokens / all) * 100 : 0}%` }}></span>`;
  const title = `Tokens: ${input ?? "?"} read, ${cached} of them from a cache; ${output ?? "?"} written`;
  return html`<span class="bar" role="img" aria-label=${title} title=${title}><span class="bar-parts">${part("cached", cached)}${part("read", (input ?? 0) - cached)}${part("written", output ?? 0)}</span>
    <span class="bar-text">tokens ${count(input)} in${cached > 0 ? ` (${count(cached)} cached)` : ""}, ${count(output)} out</span></span>`;
}

/** Model, mode or thinking level, with a field that changes it. */
function Setting({ id, name, label, value, live, choices, operation }) {
  const [edit, setEdit] = useState(false);
  if (!live) return value ? html`<span><span class="dim">${label}</span> <bdi>${safe(value, 60)}</bdi></span>` : null;
  if (!edit) return html`<button type="button" class=${`setting ${value ? "" : "wide-only"}`} onClick=${() => setEdit(true)} title=${`Change the ${label}`}><span class="dim">${label}</span> <bdi>${safe(value ?? "default", 60)}</bdi></button>`;
  const submit = async (event) => {
    event.preventDefault();
    const wanted = String(new FormData(event.target).get("value")).trim();
    setEdit(false);
    if (wanted && wanted !== value) await attempt(() => post(`v1/sessions/${segment(id)}/operations`, operation(wanted), { timeout: 60_000 }).then(refresh), `The ${label} is ${wanted} now`);
  };
  return html`<form class="setting-form" onSubmit=${submit}><input name="value" type="text" aria-label=${label} list=${`${name}-choices`} defaultValue=${value ?? ""} placeholder=${label} autofocus ref=${(node) => node?.focus()}
      onKeyDown=${(event) => { if (event.key === "Escape") setEdit(false); }}/><datalist id=${`${name}-choices`}>${choices().map((choice) => html`<option value=${choice}/>`)}</datalist><button type="submit">Set</button></form>`;
}

/** Rarer actions. */
function Menu({ id, session, model }) {
  if (!session) return null;
  const path = `v1/sessions/${segment(id)}`;
  const state = stateOf(session);
  const act = (work, done) => attempt(() => work().then(refresh), done);
  const entries = [
    ["Rename…", () => { renaming.value = id; }],
    isLive(session) && session.resumable && ["Suspend", () => act(() => post(`${path}/suspend`, {}, { timeout: 60_000 }), "Suspended: the conversation is kept")],
    state === "suspended" && ["Resume", () => act(() => post(`${path}/resume`, {}, { timeout: 120_000 }), "Resumed")],
    isLive(session) && session.resumable && ["Hand over…", async () => {
      if (await ask("Suspend this session, so that its conversation can go on in the agent's own program?", "Hand over", false)) {
        const command = await act2(() => post(`${path}/hand-over`, {}, { timeout: 60_000 }));
        if (command) await ask(`Run this to go on:\n\ncd ${command.cwd}\n${command.command.join(" ")}`, "Done", false);
      }
    }],
    isLive(session) && session.metrics && ["Compact the conversation", () => act(() => post(`${path}/operations`, "compact", { timeout: 300_000 }), "Compacted")],
    ["Download the transcript", () => attempt(async () => download(`${id}.txt`, (await get(`${path}/transcript`)).transcript))],
    !isLive(session) && [session.archived ? "Restore" : "Archive", () => act(() => call("PATCH", path, { body: { archived: !session.archived } }), session.archived ? "Restored" : "Archived")],
    (isOver(session) || state === "suspended") && ["Delete…", async () => { if (await ask("Forget this session and all of its events?", "Delete")) { await act(() => call("DELETE", path), "Deleted"); go("#/"); } }],
  ].filter(Boolean);
  const choose = (event) => { const entry = entries[Number(event.target.value)]; event.target.value = ""; entry?.[1](); };
  return html`${renaming.value === id && html`<${Rename} id=${id} value=${model.title.value ?? titleOf(session) ?? ""}/>`}
    <select class="menu" aria-label="More actions" value="" onChange=${choose}><option value="" disabled hidden>More…</option>${entries.map(([title], at) => html`<option value=${String(at)}>${title}</option>`)}</select>`;
}

const renaming = signal(null);
const act2 = (work) => attempt(async () => { const result = await work(); refresh(); return result; });

function Rename({ id, value }) {
  const submit = async (event) => {
    event.preventDefault();
    renaming.value = null;
    await attempt(() => call("PATCH", `v1/sessions/${segment(id)}`, { body: { title: String(new FormData(event.target).get("title")).trim() } }).then(() => { toast("Renamed"); refresh(); }));
  };
  return html`<form class="row" onSubmit=${submit}><input name="title" type="text" aria-label="Title" defaultValue=${value} maxlength="200" ref=${(node) => node?.focus()} onKeyDown=${(event) => { if (event.key === "Escape") renaming.value = null; }}/><button type="submit">Rename</button></form>`;
}

export function download(file, text, type = "text/plain") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const anchor = Object.assign(document.createElement("a"), { href: url, download: file });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
