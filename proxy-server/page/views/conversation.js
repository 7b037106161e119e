// The conversation of a session, as it streams.
import { html, Component, useLayoutEffect, useRef, useState, Copy, Line, LongText, now } from "../lib/ui.js";
import { Markdown } from "../lib/markdown.js";
import { Diff } from "../lib/diff.js";
import { answeredBy } from "../lib/conversation.js";
import { safe, pretty, span, age, clock, count, cost } from "../lib/text.js";
import { isLive } from "../lib/state.js";
import { useKeys } from "../lib/keys.js";
import { PermissionCard, NotifyOffer } from "./permissions.js";
import { Receipt } from "./receipt.js";
import { PromptBox } from "./prompt.js";

/** Turns, and items of a turn, that are drawn at first; the ones before come on demand. */
const TURNS = 10;
const ITEMS = 150;

export function ConversationView({ id, session, model }) {
  const scroller = useRef(null);
  const content = useRef(null);
  const stuck = useRef(true);
  const below = useRef(null);
  const [shown, setShown] = useState(TURNS);
  const [away, setAway] = useState(false);
  void model.rev.value;
  const turns = model.turns;
  const hidden = Math.max(0, turns.length - shown);

  useLayoutEffect(() => {
    const box = scroller.current;
    const toEnd = () => { if (stuck.current) box.scrollTop = box.scrollHeight; };
    const observer = new ResizeObserver(toEnd);
    observer.observe(content.current);
    observer.observe(box);
    toEnd();
    return () => observer.disconnect();
  }, []);
  // It comes with the next frame, when the view may be gone already.
  const onScroll = ({ currentTarget: box }) => {
    stuck.current = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    setAway(!stuck.current);
    // At the top the turns before come by themselves, and what is read stays where it is.
    if (box.scrollTop < 60 && !stuck.current && shown < model.turns.length) {
      below.current = box.scrollHeight - box.scrollTop;
      setShown(shown + 20);
    }
  };
  useLayoutEffect(() => {
    if (below.current !== null) scroller.current.scrollTop = scroller.current.scrollHeight - below.current;
    below.current = null;
  }, [shown]);
  const toEnd = () => { stuck.current = true; scroller.current.scrollTop = scroller.current.scrollHeight; setAway(false); };
  useKeys([["G", "To the end of the conversation", toEnd], ["i", "Write a prompt", () => document.getElementById("prompt")?.focus()]], []);

  const open = (session?.openPermissions ?? []).length ? session.openPermissions : [];
  return html`<div class="conversation">
    <div class="scroll-y chat" ref=${scroller} onScroll=${onScroll} tabindex="0" role="log" aria-label="Conversation" aria-live="off">
      <div ref=${content} class="chat-content">
        ${hidden > 0 && html`<p class="center"><button type="button" class="quiet" onClick=${() => setShown(shown + 50)}>Show the ${Math.min(50, hidden)} turns before</button></p>`}
        ${turns.length === 0 && html`<div class="empty"><p>Nothing has been said yet.</p></div>`}
        ${turns.slice(hidden).map((turn) => html`<${Turn} key=${turn.id} turn=${turn} sessionId=${id} last=${turn === turns[turns.length - 1]}/>`)}
        <${Waiting} model=${model} session=${session}/>
      </div>
    </div>
    ${away && html`<button type="button" class="to-end" onClick=${toEnd}>↓ To the end</button>`}
    <${OpenCards} id=${id} model=${model} open=${open}/>
    <${PromptBox} id=${id} session=${session} model=${model}/>
  </div>`;
}

/** Open requests above the prompt, where they cannot scroll away. The first takes the keys. */
function OpenCards({ id, model, open }) {
  // An answer comes as an event before the next list.
  const waiting = open.filter((request) => { const known = model.permissions.get(request.id); void known?.rev.value; return !known?.answer; });
  return html`<div class="open-cards" aria-live="polite">${waiting.slice(0, 3).map((request, at) => {
    const known = model.permissions.get(request.id)?.request;
    const tool = known?.toolCallId ? model.tools.get(known.toolCallId) : null;
    return html`<${PermissionCard} key=${request.id} sessionId=${id} request=${known ?? request} hot=${at === 0} diffs=${tool?.diffs.size ? tool.diffs : null}/>`;
  })}${waiting.length > 0 && html`<${NotifyOffer}/>`}${waiting.length > 3 && html`<p class="dim">${waiting.length - 3} more wait.</p>`}</div>`;
}

/** A sign that the agent works. Its place is there all the time, so that nothing moves. */
function Waiting({ model, session }) {
  const last = model.turns[model.turns.length - 1];
  void last?.rev.value;
  const busy = last && (last.number !== null || (last.onScreen && last.prompt !== null)) && !last.endedAt && (!session || isLive(session));
  return html`<p class="working" aria-hidden=${!busy}>${busy ? html`<span class="pulse" aria-hidden="true"></span> <span>working · ${age(now.value - Date.parse(last.at))}</span>` : ""}</p>`;
}

const STOPS = { cancelled: "aborted", refusal: "the model refused", maxTokens: "a token limit was reached", maxRequests: "the bound on model replies was reached", ended: "the session ended" };

function Turn({ turn, sessionId, last }) {
  void turn.rev.value;
  const [all, setAll] = useState(false);
  const from = all ? 0 : Math.max(0, turn.items.length - ITEMS);
  const stop = typeof turn.stop === "string" ? STOPS[turn.stop] : turn.stop?.other;
  const time = turn.endedAt ? Date.parse(turn.endedAt) - Date.parse(turn.at) : null;
  return html`<article class=${`turn ${last ? "last" : ""}`} aria-label=${turn.number !== null ? `Turn ${turn.number}` : turn.onScreen ? "On the agent's screen" : "Before the first turn"}>
    ${turn.onScreen && turn.prompt === null && html`<p><${OnScreen}/></p>`}
    ${turn.prompt !== null && html`<div class="prompt"><header>${turn.onScreen ? html`<${OnScreen}/>` : html`<span class="who">${safe(turn.by ?? turn.caller ?? "prompt", 60)}</span>`}${turn.by && turn.caller && turn.by !== turn.caller && html` <span class="dim">as ${safe(turn.caller, 60)}</span>`} <time class="dim" datetime=${turn.at}>${clock(turn.at)}</time></header>
      <${LongText} text=${turn.prompt} class="prompt-text" lines=${24} label="Prompt"/>
      ${turn.attachments.map((line) => html`<span class="attachment"><bdi>${safe(line, 200)}</bdi></span> `)}</div>`}
    ${from > 0 && html`<p><button type="button" class="quiet" onClick=${() => setAll(true)}>Show the ${from} parts before</button></p>`}
    ${turn.items.slice(from).map((item) => html`<${Item} key=${item.id} item=${item} sessionId=${sessionId}/>`)}
    ${turn.endedAt && (turn.number !== null || turn.onScreen) && html`<footer class="dim">${stop ? html`<span class="bad-text"><bdi>${safe(stop, 200)}</bdi></span> · ` : ""}${time === null ? "" : span(time)}
      ${turn.usage && turn.usage.outputTokens != null ? ` · ${count(turn.usage.inputTokens)} in, ${count(turn.usage.outputTokens)} out` : ""}${turn.usage?.costUsd != null ? ` · ${cost(turn.usage.costUsd)}` : ""}</footer>`}
  </article>`;
}

/** Mark of what was done on the agent's own screen, and not by a prompt of ours. */
function OnScreen() {
  return html`<span class="who on-screen" title="On the agent's own screen"><span aria-hidden="true">▣ </span>terminal</span>`;
}

/** Draws an item anew when it changes, and no other. */
function Item({ item, sessionId }) {
  void item.rev.value;
  switch (item.kind) {
    case "text": return html`<div class="text-item">${!item.growing && item.length > 40 && html`<div class="item-tools"><${Copy} text=${() => item.parts.join("")} label="Copy the text"/></div>`}<${Markdown} source=${item.source} rev=${item.rev.value}/>${item.isCut && html`<p class="dim">The rest of this text is too long for the page.</p>`}</div>`;
    case "thinking": return html`<${Thinking} item=${item} rev=${item.rev.value}/>`;
    case "tool": return html`<${Tool} item=${item} rev=${item.rev.value} sessionId=${sessionId}/>`;
    case "plan": return html`<${Plan} entries=${item.entries}/>`;
    case "error": return html`<${Failure} item=${item}/>`;
    case "permission": return html`<${Asked} item=${item}/>`;
    case "note": return html`<${Note} item=${item}/>`;
    default: return null;
  }
}

function Thinking({ item }) {
  const [open, setOpen] = useState(false);
  return html`<details class="thinking" open=${open} onToggle=${(event) => setOpen(event.target.open)}><summary>Thinking${item.growing ? "…" : ""} <span class="dim">${count(item.length)} characters</span></summary>
    ${open && html`<${Markdown} source=${item.source}/>`}</details>`;
}

const TOOL_STATES = { pending: "waits", inProgress: "runs", in_progress: "runs", completed: "done", failed: "failed" };

/** Command or path of a tool's input, which says most of it. */
function gist(item) {
  const input = item.input;
  if (!input || typeof input !== "object") return null;
  const value = input.command ?? input.cmd ?? input.file_path ?? input.filePath ?? input.path ?? input.pattern ?? input.query ?? input.url;
  return Array.isArray(value) ? value.join(" ") : typeof value === "string" ? value : null;
}

class Tool extends Component {
  constructor() {
    super();
    this.state = { open: null };
  }
  render({ item, sessionId }, { open }) {
    const failed = item.status === "failed";
    const done = failed || item.status === "completed";
    const nested = item.items.length > 0;
    const isOpen = open ?? (nested || item.diffs.size > 0 || failed);
    const time = (item.endedAt ? Date.parse(item.endedAt) : now.value) - Date.parse(item.at);
    const what = gist(item);
    const title = item.title || item.name;
    return html`<details class=${`tool tool-${TOOL_STATES[item.status] ?? "runs"}`} open=${isOpen} onToggle=${(event) => { if (event.target.open !== isOpen) this.setState({ open: event.target.open }); }}>
      <summary><span class="tool-state" aria-hidden="true">${failed ? "✗" : done ? "✓" : "…"}</span><span class="sr">${TOOL_STATES[item.status] ?? safe(item.status, 20)}: </span>
        <span class="tool-name">${safe(item.name, 40)}</span> <${Line} text=${title === item.name ? what ?? "" : title} class="tool-title"/>
        <span class="dim time">${done ? (item.endedAt ? span(time) : "") : age(time)}</span></summary>
      ${isOpen && html`<div class="tool-body">
        ${[...item.diffs.values()].map((diff) => html`<${FileDiff} diff=${diff}/>`)}
        ${item.input !== null && item.input !== undefined && item.diffs.size === 0 && html`<${Labelled} label="Input" text=${what !== null && Object.keys(item.input).length === 1 ? what : pretty(item.input)}/>`}
        ${nested && html`<div class="nested" role="group" aria-label="Sub-agent">${item.items.map((child) => html`<${Item} key=${child.id} item=${child} sessionId=${sessionId}/>`)}</div>`}
        ${item.output && html`<${Output} text=${item.output} live=${!done}/>`}
      </div>`}</details>`;
  }
}

function FileDiff({ diff }) {
  const verb = { created: "new", deleted: "deleted", moved: "moved" }[diff.change];
  const path = `${diff.path}${diff.movedTo ? ` → ${diff.movedTo}` : ""}${verb ? ` (${verb})` : ""}`;
  const hunks = diff.hunks ?? [{ oldText: diff.oldText ?? diff.old, newText: diff.newText ?? diff.new }];
  return html`${hunks.map((hunk, at) => html`<${Diff} key=${at} path=${path} before=${hunk.oldText} after=${hunk.newText}/>`)}${diff.omittedBytes > 0 && html`<p class="dim">${diff.omittedBytes} bytes of it are left out.</p>`}`;
}

function Labelled({ label, text, more }) {
  return html`<div class="labelled"><div class="label"><span>${label}</span>${more}<${Copy} text=${text} label=${`Copy: ${label}`}/></div><${LongText} text=${text} lines=${24} label=${label}/></div>`;
}

const PICTURE = /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/;

function Output({ text, live }) {
  if (PICTURE.test(text)) return html`<img class="picture" src=${text} alt="Picture from the tool"/>`;
  // A long output that still comes is shown by its end.
  const shown = live && text.length > 4000 ? `…${text.slice(-4000)}` : text;
  return html`<${Labelled} label=${live ? "Output so far" : "Output"} text=${shown}/>`;
}

const BOXES = { completed: "☑", in_progress: "◐", inProgress: "◐", pending: "☐" };

function Plan({ entries }) {
  const done = entries.filter((entry) => entry.status === "completed").length;
  return html`<section class="plan" aria-label="Plan"><header>Plan <span class="dim">${done} of ${entries.length}</span></header>
    <ul>${entries.slice(0, 200).map((entry) => html`<li class=${`step step-${entry.status === "completed" ? "done" : entry.status === "pending" ? "todo" : "now"}`}><span aria-hidden="true">${BOXES[entry.status] ?? "☐"}</span><span class="sr">${safe(entry.status, 20)}: </span> <bdi>${safe(entry.content, 500)}</bdi>${entry.priority === "high" && html` <span class="mark-word">high</span>`}</li>`)}</ul></section>`;
}

function Failure({ item }) {
  return html`<div class="failure" role="alert"><strong>${safe(item.code ?? "error", 60)}</strong> <bdi>${safe(item.message, 1000)}</bdi>
    <span class="dim">${item.attempt != null ? ` attempt ${item.attempt}` : ""}${item.delayMs != null ? `, again in ${span(item.delayMs)}` : ""}${item.retryable ? " · may succeed later" : ""}</span></div>`;
}

/** A request in the place where it came, with who answered. */
function Asked({ item }) {
  const { request, answer } = item;
  const option = (request.options ?? []).find((one) => one.id === answer?.option);
  const allowed = option && /^allow/.test(option.kind ?? "");
  return html`<div class="asked"><span aria-hidden="true">?</span> <${Line} text=${request.title || request.tool}/>
    ${answer ? html` <span class=${allowed ? "good-text" : "bad-text"}>${safe(option?.name ?? (answer.option ? answer.option : "not allowed"), 60)}</span> <span class="dim">by <bdi>${safe(item.answerBy ?? answeredBy(answer.by), 60)}</bdi> <time datetime=${item.answeredAt}>${clock(item.answeredAt)}</time></span>` : html` <span class="dim">waits for an answer</span>`}</div>`;
}

function Note({ item }) {
  const [open, setOpen] = useState(false);
  return html`<div class=${`note note-${item.level}`}>${item.onScreen && html`<${OnScreen}/> `}<bdi>${safe(item.text, 600)}</bdi>${item.at && html` <time class="dim" datetime=${item.at}>${clock(item.at)}</time>`}
    ${item.receipt && html` <button type="button" class="quiet small" aria-expanded=${open} onClick=${() => setOpen(!open)}>Receipt</button>${open && html`<${Receipt} receipt=${item.receipt}/>`}`}</div>`;
}
