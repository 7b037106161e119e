// A session's events as a conversation: turns with their items. Pure but for the signals that tell the views what has changed.
import { signal } from "./ui.js";
import { MarkdownSource } from "./markdown.js";

/** Most characters of one text that are kept. */
const MAX_TEXT = 8_000_000;
/** Most characters of a tool's output that are kept. */
const MAX_OUTPUT = 1_000_000;
/** Most processes of which the timeline is kept. */
const MAX_PROCESSES = 2000;
/** Turns, counted from the last, that an event may belong to. What those before them said is released when it is not drawn. */
const NEAR = 20;
/** Pieces of a text that are joined to one. */
const MAX_PIECES = 512;
/** Unit in which the kernel counts when processes start, in milliseconds. */
const CLOCK_TICK = 10;

let lastId = 0;

/** Something that a view shows; the view is drawn again when `rev` changes. */
function item(kind, fields) {
  return { kind, id: ++lastId, rev: signal(0), ...fields };
}

function touch(thing) {
  thing.rev.value++;
}

/** Text that grows by pieces. Many small strings take several times the room of one. */
class GrowingText {
  constructor(text = "") {
    this.joined = [text];
    this.pieces = [];
  }

  push(text) {
    this.pieces.push(text);
    if (this.pieces.length >= MAX_PIECES) this.joined.push(this.pieces.splice(0).join(""));
  }

  toString() {
    return this.joined.concat(this.pieces).join("");
  }
}

export class Conversation {
  constructor() {
    this.turns = [];
    /** Changes with the number of turns. */
    this.rev = signal(0);
    this.tools = new Map();
    this.permissions = new Map();
    this.usage = signal(null);
    this.context = signal(null);
    this.commands = signal([]);
    this.title = signal(null);
    this.settings = signal({});
    this.plan = null;
    this.ended = signal(null);
    /** Numbers of those who view the terminal. */
    this.viewers = signal([]);
    /** Latest status that the agent's own screen has reported: {status, detail}. */
    this.screen = signal(null);
    /** Visit of the agent's own screen: {at, by}; null without one. */
    this.visit = signal(null);
    /** Workspace of its own: {kind, source}. */
    this.workspace = signal(null);
    this.processes = new Map();
    this.processRev = signal(0);
    this.limits = signal([]);
    this.offset = null;
    /** Number of the first turns that were released, or wait for it in `old`, as they are drawn. */
    this.releasedTo = 0;
    this.old = new Set();
    /** Who has prompted, and the turns of which that is not known yet: both in their order. */
    this.prompters = [];
    this.unsigned = [];
    this.measures = signal(null);
    /** Who has asked for the visit that begins next. */
    this.visitor = null;
  }

  /** Turn of an event. Those of the agent's own screen have no number; they may come between those of a turn. */
  turn(number, at, onScreen = false) {
    const last = this.turns[this.turns.length - 1];
    const found = number !== null || onScreen ? this.known(number, onScreen) : last;
    return found ?? this.begin({ number, at, onScreen });
  }

  /** Turn that is there already, among the last ones. */
  known(number, onScreen) {
    const isIt = number !== null ? (turn) => turn.number === number : (turn) => turn.onScreen && !turn.endedAt;
    for (let at = this.turns.length - 1; at >= Math.max(0, this.turns.length - NEAR); at--) if (isIt(this.turns[at])) return this.turns[at];
    const last = this.turns[this.turns.length - 1];
    return number === null && onScreen && last?.onScreen ? last : undefined;
  }

  begin({ number, prompt = null, attachments = [], at, by = null, onScreen = false }) {
    const turn = item("turn", { number, prompt, attachments, by, at, onScreen, endedAt: null, items: [], stop: null, usage: null, from: this.offset, to: this.offset, drawn: 0, isReleased: false });
    this.turns.push(turn);
    this.release();
    if (prompt !== null && number !== null) {
      if (this.prompters.length) turn.caller = this.prompters.shift();
      else this.unsigned = [...this.unsigned.slice(-20), turn];
    }
    touch(this);
    return turn;
  }

  /** Forgets what old turns said, but for those that are drawn. Whoever draws them again restores them before. */
  release() {
    for (const turn of this.turns.slice(this.releasedTo, -NEAR)) this.old.add(turn);
    this.releasedTo = Math.max(this.releasedTo, this.turns.length - NEAR);
    for (const turn of this.old) if (!turn.drawn) { this.old.delete(turn); this.forget(turn); }
  }

  /** Offsets between which the released ones of these turns are: [after, up to]; null if none is released. */
  released(turns) {
    const gone = turns.filter((turn) => turn.isReleased);
    return gone.length ? [Number(gone[0].from) - 1, Math.max(...gone.map((turn) => Number(turn.to)))] : null;
  }

  /** Gives released turns back what they said, by the events of that time. */
  restore(turns, events) {
    const again = new Conversation();
    for (const event of events) again.take(event);
    for (const turn of turns) {
      if (!turn.isReleased) continue;
      const found = again.turns.find((other) => other.number === turn.number && other.from === turn.from) ?? again.turns.find((other) => other.number === turn.number);
      turn.items = found?.items ?? [];
      turn.isReleased = false;
      this.old.add(turn);
      touch(turn);
    }
  }

  forget(turn) {
    const remove = (list) => {
      for (const thing of list) {
        if (thing.kind === "tool") { this.tools.delete(thing.call); remove(thing.items); }
        if (thing.kind === "permission") this.permissions.delete(thing.request.id);
      }
    };
    remove(turn.items);
    turn.items = [];
    turn.isReleased = true;
  }

  workspaceStep({ step, kind, source, files }, at, number) {
    this.workspace.value = step === "dropped" ? null : { kind, source };
    const count = `${files} ${files === 1 ? "file" : "files"}`;
    const text = step === "applied" ? `${count} applied to ${source}` : step === "dropped" ? `the workspace is dropped${files ? `, with ${count} that had changed` : ""}` : `works in a ${kind} of ${source}`;
    this.note("info", text, at, number);
  }

  /** Takes an event as it comes. */
  take(event) {
    const { type, payload: p = {}, metadata = {} } = event;
    this.offset = event.offset;
    if (!p || typeof p !== "object") return;
    const at = event.createdAt;
    const number = metadata?.turn ?? null;
    const by = personOf(metadata);
    const onScreen = metadata?.surface === "terminal" && number === null;
    const of = number !== null || onScreen ? this.known(number, onScreen) : undefined;
    if (of) of.to = this.offset;
    switch (type) {
      case "turn:started": this.begin({ number, prompt: p.prompt ?? "", attachments: p.attachments ?? [], at, by: by ?? p.by ?? null }); break;
      case "terminal:prompted": this.begin({ number, prompt: p.text ?? "", at, onScreen: true }); break;
      case "stream:text": this.text("text", this.turn(number, at, onScreen), p.text); break;
      case "stream:thinking": this.text("thinking", this.turn(number, at, onScreen), p.text); break;
      case "stream:subagent_text": this.text("text", this.tools.get(p.parent) ?? this.turn(number, at, onScreen), p.text); break;
      case "stream:subagent_thinking": this.text("thinking", this.tools.get(p.parent) ?? this.turn(number, at, onScreen), p.text); break;
      case "stream:voided": this.void(this.turn(number, at, onScreen), p); break;
      case "stream:tool_start": this.toolStart(p, number, at, onScreen); break;
      case "stream:tool_update": this.toolUpdate(p); break;
      case "stream:tool_end": this.toolEnd(p, at); break;
      case "stream:diff": this.diff(p, number, at, onScreen); break;
      case "stream:image": this.image(p, number, at, onScreen); break;
      case "stream:plan": this.setPlan(p, number, at, onScreen); break;
      case "stream:usage": this.usage.value = p; break;
      case "stream:context_window": this.context.value = p; break;
      case "stream:error": this.add(this.turn(number, at, onScreen), item("error", { ...p, at })); break;
      case "stream:complete": {
        const turn = this.turn(number, at, onScreen);
        this.close(turn);
        Object.assign(turn, { endedAt: at, stop: p.stopReason ?? "endTurn", usage: p.usage });
        touch(turn);
        break;
      }
      case "permission:requested": this.permission(p, number, at, onScreen); break;
      case "permission:resolved": {
        const request = this.permissions.get(p.id);
        if (request) { Object.assign(request, { answer: p, answeredAt: at, answerBy: by }); touch(request); }
        break;
      }
      case "permission:bypassed": this.note("warn", `ran without a decision: ${p.title ?? p.tool}`, at, number, { onScreen }); break;
      case "session:started":
        this.measures.value = p.measures ?? null;
        break;
      case "session:commands": this.commands.value = p.commands ?? []; break;
      case "session:title": this.title.value = p.title; break;
      case "session:model": this.setting("model", p.model, p.by, at, number); break;
      case "session:mode": this.setting("mode", p.mode, p.by, at, number); break;
      case "session:thinking": this.setting("thinking", p.level, p.by, at, number); break;
      case "session:status": this.status(p, at, number); break;
      case "session:workspace": this.workspaceStep(p, at, number); break;
      case "session:suspended": this.note("info", "suspended: the processes have ended, the conversation is kept", at, number, { receipt: p.receipt }); break;
      case "session:resumed":
        this.ended.value = null;
        this.viewers.value = [];
        this.visit.value = p.by === "visit" ? { at, by: this.visitor ?? null } : null;
        this.visitor = null;
        this.note("info", p.detail || "resumed", at, number);
        break;
      case "session:ended": this.finish(p, at); break;
      case "session:gap": this.note("warn", `events ${Number(p.from)} to ${Number(p.to)} are missing here`, at, number); break;
      case "session:lossy": case "session:degraded": this.note("warn", p.reason, at, number); break;
      case "action:failed": this.note("error", `${p.action} failed: ${p.error}`, at, number); break;
      case "timeout:fired": this.note("warn", `the clock "${p.clock}" ran out after ${Math.round(p.afterMs / 1000)} s${p.lastWords ? `; last: ${p.lastWords}` : ""}`, at, number); break;
      case "limit:exceeded":
        this.limits.value = [...this.limits.value.slice(-20), { ...p, at }];
        this.note("warn", `passed the limit on ${p.limit}: ${p.measured} of ${p.value}`, at, number);
        break;
      case "budget:exceeded": this.note("warn", `used up the budget of ${p.budget}: ${p.measured} of ${p.value}`, at, number); break;
      case "network:refused": this.note("warn", `was refused the host ${p.host}${p.port ? `:${p.port}` : ""}: ${p.reason}`, at, number); break;
      case "usage:limited": this.note("warn", `${p.message}${p.resetsAt ? ` (until ${p.resetsAt})` : ""}`, at, number); break;
      case "terminal:status": this.screen.value = { status: p.status, detail: p.detail ?? null }; break;
      case "terminal:attached": this.viewers.value = [...this.viewers.value.filter((viewer) => viewer !== p.viewer), p.viewer]; break;
      case "terminal:detached": this.viewers.value = this.viewers.value.filter((viewer) => viewer !== p.viewer); break;
      case "audit:call": this.called(p, at, number); break;
      case "process:spawned": this.spawned(p, at, number); break;
      case "process:exited": this.exited(p, at); break;
      default: break;
    }
  }

  add(to, thing) {
    const list = to.items;
    this.close(to);
    list.push(thing);
    touch(to);
    return thing;
  }

  /** Ends the text that grows. */
  close(to) {
    const last = to.items[to.items.length - 1];
    if (last?.growing) { last.growing = false; touch(last); }
  }

  text(kind, to, text) {
    if (!text) return;
    let last = to.items[to.items.length - 1];
    if (last?.kind !== kind || !last.growing) last = this.add(to, item(kind, { growing: true, text: new GrowingText(), source: new MarkdownSource(), length: 0 }));
    if (last.length >= MAX_TEXT) { last.isCut = true; return; }
    last.length += text.length;
    last.text.push(text);
    last.source.push(text);
    touch(last);
  }

  /** Takes back the end of what a turn has said. */
  void(turn, { textBytes = 0, thinkingBytes = 0 }) {
    for (const [kind, bytes] of [["text", textBytes], ["thinking", thinkingBytes]]) {
      let left = bytes;
      for (let at = turn.items.length - 1; at >= 0 && left > 0; at--) {
        const thing = turn.items[at];
        if (thing.kind !== kind) continue;
        const encoded = new TextEncoder().encode(String(thing.text));
        const kept = new TextDecoder().decode(encoded.slice(0, Math.max(0, encoded.length - left)));
        left -= encoded.length;
        Object.assign(thing, { text: new GrowingText(kept), source: new MarkdownSource(kept), length: kept.length });
        touch(thing);
      }
    }
    this.add(turn, item("note", { level: "info", text: "the answer broke off; the agent asks again" }));
  }

  toolStart(p, number, at, onScreen = false) {
    const known = this.tools.get(p.id);
    if (known) { Object.assign(known, { name: p.name, title: p.title ?? known.title, input: p.input ?? known.input, status: p.status ?? known.status }); touch(known); return; }
    const parent = p.parent ? this.tools.get(p.parent) : null;
    const tool = item("tool", {
      call: p.id, name: p.name, title: p.title, toolKind: p.kind, input: p.input, output: null, status: p.status ?? "pending", at, endedAt: null, items: [], diffs: new Map(),
    });
    this.tools.set(p.id, tool);
    this.add(parent ?? this.turn(number, at, onScreen), tool);
  }

  toolUpdate(p) {
    const tool = this.tools.get(p.id);
    if (!tool) return;
    for (const name of ["title", "status", "input"]) if (p[name] !== null && p[name] !== undefined) tool[name] = p[name];
    if (p.output) tool.output = p.output.slice(-MAX_OUTPUT);
    touch(tool);
  }

  toolEnd(p, at) {
    const tool = this.tools.get(p.id);
    if (!tool) return;
    if (p.output !== null && p.output !== undefined && p.output !== "") tool.output = p.output.slice(0, MAX_OUTPUT);
    Object.assign(tool, { status: p.status ?? "completed", endedAt: at });
    this.close(tool);
    touch(tool);
  }

  diff(p, number, at, onScreen = false) {
    const call = p.toolCallId ?? p.id;
    let tool = this.tools.get(call);
    if (!tool) { this.toolStart({ id: call, name: "edit", title: p.path, kind: "edit", status: "inProgress", parent: p.parent }, number, at, onScreen); tool = this.tools.get(call); }
    tool.diffs.set(p.path, p);
    touch(tool);
  }

  image(p, number, at, onScreen = false) {
    const tool = this.tools.get(p.toolCallId) ?? this.tools.get(p.parent);
    this.add(tool ?? this.turn(number, at, onScreen), item("image", { mimeType: p.mimeType, data: p.data, bytes: p.bytes, isOutput: Boolean(p.toolCallId) }));
  }

  setPlan(p, number, at, onScreen = false) {
    const turn = this.turn(number, at, onScreen);
    let plan = turn.items.find((thing) => thing.kind === "plan");
    if (plan) { plan.entries = p.entries ?? []; touch(plan); } else plan = this.add(turn, item("plan", { entries: p.entries ?? [] }));
    this.plan = plan;
  }

  permission(p, number, at, onScreen = false) {
    const request = item("permission", { request: p, at, answer: null });
    this.permissions.set(p.id, request);
    const parent = p.parent ? this.tools.get(p.parent) : null;
    this.add(parent ?? this.turn(number, at, onScreen), request);
  }

  setting(name, value, by, at, number) {
    this.settings.value = { ...this.settings.value, [name]: value };
    this.note("info", `${name} is ${value}${by && by !== "caller" ? ` (by the ${by})` : ""}`, at, number);
  }

  status(p, at, number) {
    if (p.status === "conversationNotKept") this.note("info", `a suspend would lose this conversation: ${p.detail}`, at, number);
    else if (["agentExited", "resumeFailed", "untriedVersion", "maxTurnsReached", "terminalInputDropped", "unresponsive", "warning",
      "proxyStopped", "compaction", "usageLimitReset"].includes(p.status)) this.note(p.status === "compaction" ? "info" : "warn", p.detail || p.status, at, number);
  }

  note(level, text, at, number, { receipt = null, onScreen = false } = {}) {
    const last = this.turns[this.turns.length - 1];
    const turn = last ?? this.begin({ number, at });
    turn.to = this.offset;
    this.add(turn, item("note", { level, text, at, receipt, onScreen }));
  }

  finish(p, at) {
    this.viewers.value = [];
    this.visit.value = null;
    this.ended.value = { ...p, at };
    const last = this.turns[this.turns.length - 1];
    if (last && !last.endedAt) { last.endedAt = at; last.stop = "ended"; this.close(last); touch(last); }
    for (const request of this.permissions.values()) if (!request.answer) { request.answer = { by: "abort", option: null }; touch(request); }
  }

  /** Takes a record of who has called: the author of a prompt, or of what ended something. */
  called(p, at, number) {
    if (p.outcome === "refused" || p.outcome === "failed") return;
    const who = p.user ?? (p.caller === "host" ? "this machine" : p.caller);
    const route = /\/([^/]+)$/.exec(p.route ?? "")?.[1];
    if (route === "prompt" || route === "ask") {
      const turn = this.unsigned.shift();
      if (turn) { turn.caller = who; touch(turn); } else this.prompters = [...this.prompters.slice(-20), who];
    } else {
      // Its record may come before the visit begins, or after.
      if (route === "visit") { if (this.visit.value) this.visit.value = { ...this.visit.value, by: who }; else this.visitor = who; }
      const did = { visit: "visited the agent's screen", operations: "changed a setting of the agent", resume: "resumed the session", abort: "aborted the turn", kill: "asked for a kill", suspend: "suspended the session", steer: "steered the turn", "hand-over": "handed the session over", "take-back": "took the session back", signal: "sent a signal" }[route];
      if (did) this.note("info", `${who} ${did}`, at, number);
    }
  }

  spawned(p, at, number) {
    if (!p.id) return;
    const key = `${p.id.pid}.${p.id.startTime}`;
    if (this.processes.size >= MAX_PROCESSES) this.processes.delete(this.processes.keys().next().value);
    const words = [p.command, ...(p.args ?? [])].filter(Boolean).join(" ");
    this.processes.set(key, { key, pid: p.id.pid, ppid: p.ppid, sid: p.sid, pgid: p.pgid, command: words.slice(0, 400), at: p.startedAt ?? at, endedAt: null, exit: null, turn: number ?? this.turnOf(p.startedAt ?? at) });
    touch({ rev: this.processRev });
  }

  /** Number of the turn in which something began. A process may be seen when its turn has just ended. */
  turnOf(at) {
    const time = Date.parse(at);
    const began = this.turns.slice(-NEAR).reverse().find((turn) => turn.number !== null && Date.parse(turn.at) <= time + CLOCK_TICK);
    return began && (!began.endedAt || time <= Date.parse(began.endedAt) + CLOCK_TICK) ? began.number : null;
  }

  exited(p, at) {
    if (!p.process) return;
    const key = `${p.process.pid}.${p.process.startTime}`;
    const known = this.processes.get(key) ?? { key, pid: p.process.pid, command: p.command, at, turn: null };
    Object.assign(known, { endedAt: at, exit: p.exit });
    this.processes.set(key, known);
    touch({ rev: this.processRev });
  }
}

/** Person who caused an event, where its metadata tells. */
function personOf(metadata) {
  const by = metadata?.by ?? metadata?.user ?? null;
  if (!by) return null;
  return typeof by === "string" ? by : by.user?.name ?? by.name ?? null;
}

export function answeredBy(by) {
  if (typeof by === "string") return { deadline: "nobody in time", abort: "the end of the turn", agent: "the agent itself", terminal: "somebody at the screen" }[by] ?? by;
  if (by?.user) return by.user.name ?? "a user";
  if (by?.mode) return `the mode ${by.mode}`;
  if (by?.rule) return `rule ${by.rule.index}`;
  return "somebody";
}

export function exitText(exit) {
  if (exit === null || exit === undefined) return "gone";
  if ("code" in exit) return `exit ${exit.code}`;
  if ("signal" in exit) return signalName(exit.signal);
  return "gone";
}

const SIGNALS = { 1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 18: "CONT", 19: "STOP", 20: "TSTP", 24: "XCPU", 25: "XFSZ" };
export const signalName = (number) => `SIG${SIGNALS[number] ?? number}`;

export function reasonText(reason) {
  if (!reason) return "for an unknown reason";
  if (typeof reason === "string") {
    return { killed: "killed, as somebody asked", forkServerDied: "the fork server died", hostDied: "the host died", shutdown: "the daemon ended", suspended: "suspended" }[reason] ?? reason;
  }
  const [[name, value]] = Object.entries(reason);
  switch (name) {
    case "agentExited": return `the agent exited by itself (${exitText(value)})`;
    case "failed": return `failed: ${value}`;
    case "proxyDied": return `the proxy died (${exitText(value)})`;
    case "limitExceeded": return `the limit on ${value} was passed`;
    case "timedOut": return `the clock "${value}" ran out`;
    case "budgetExceeded": return `the budget of ${value} was used up`;
    case "unresponsive": return `the proxy did not answer ${value} pings`;
    default: return `${name}: ${JSON.stringify(value)}`;
  }
}
