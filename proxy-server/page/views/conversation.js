// The conversation of a session, as it streams.
import { html, Component, useLayoutEffect, useRef, useState, attempt, Copy, Line, LongText, now } from "../lib/ui.js";
import { get, segment } from "../lib/api.js";
import { Markdown } from "../lib/markdown.js";
import { Diff } from "../lib/diff.js";
import { answeredBy } from "../lib/conversation.js";
import { safe, bytes, pretty, span, age, clock, count, cost } from "../lib/text.js";
import { isLive } from "../lib/state.js";
import { useKeys } from "../lib/keys.js";
import { PermissionCard, NotifyOffer } from "./permissions.js";
import { Receipt } from "./receipt.js";
import { PromptBox } from "./prompt.js";

/** Turns, and items of a turn, that are drawn at first; the ones before come on demand. */
const TURNS = 10;
const ITEMS = 150;
/** Turns that come when somebody scrolls to the first that is drawn. */
const MORE = 20;
/** Events of a page that are asked for. */
const PAGE = 2000;

/** Asks for what released turns said, and gives it back to them. */
async function restore(id, model, turns) {
  const range = model.released(turns);
  if (!range) return;
  const [after, to] = range;
  const events = [];
  for (let from = after, more = true; more;) {
    const page = await get(`v1/sessions/${segment(id)}/events`, { from, raw: false, limit: PAGE });
    events.push(...page.events.filter((event) => Number(event.offset) <= to));
    from = page.next;
    more = page.more && Number(from) < to;
  }
  model.restore(turns, events);
}

export function ConversationView({ id, session, model }) {
  const scroller = useRef(null);
  const content = useRef(null);
  const stuck = useRef(true);
  const top = useRef(0);
  const below = useRef(null);
  const first = useRef(0);
  const isLoading = useRef(false);
  /** Turns that are restored and not yet drawn. */
  const coming = useRef([]);
  const [shown, setShown] = useState(TURNS);
  const [away, setAway] = useState(false);
  void model.rev.value;
  const turns = model.turns;
  // While somebody reads, no turn goes at the top because another came below.
  const wanted = Math.max(0, turns.length - shown);
  first.current = stuck.current ? wanted : Math.min(first.current, wanted);
  const hidden = first.current;

  useLayoutEffect(() => {
    const box = scroller.current;
    const toEnd = () => { if (stuck.current) { box.scrollTop = box.scrollHeight; top.current = box.scrollTop; } };
    const observer = new ResizeObserver(toEnd);
    observer.observe(content.current);
    observer.observe(box);
    toEnd();
    return () => observer.disconnect();
  }, []);
  // It comes with the next frame, when the view may be gone already.
  const onScroll = ({ currentTarget: box }) => {
    // Only who scrolls up leaves the end: text that comes faster than events of scrolling does not.
    if (box.scrollHeight - box.scrollTop - box.clientHeight < 40) stuck.current = true;
    else if (box.scrollTop < top.current - 1) stuck.current = false;
    top.current = box.scrollTop;
    setAway(!stuck.current);
    // At the top the turns before come by themselves.
    if (box.scrollTop < 60 && !stuck.current) more(MORE);
  };
  /** Draws turns before the first; what is read stays where it is. */
  const more = async (count) => {
    const from = Math.max(0, first.current - count);
    if (isLoading.current || from === first.current) return;
    isLoading.current = true;
    await attempt(async () => {
      const turns = model.turns.slice(from, first.current);
      await restore(id, model, turns);
      if (!scroller.current) return;
      for (const turn of turns) turn.drawn++;
      coming.current = turns;
      stuck.current = false;
      below.current = scroller.current.scrollHeight - scroller.current.scrollTop;
      setShown(model.turns.length - from);
    });
    isLoading.current = false;
  };
  useLayoutEffect(() => {
    if (below.current !== null) scroller.current.scrollTop = scroller.current.scrollHeight - below.current;
    below.current = null;
    for (const turn of coming.current) turn.drawn--;
    coming.current = [];
  }, [shown]);
  const toEnd = () => { stuck.current = true; setShown(TURNS); setAway(false); scroller.current.scrollTop = scroller.current.scrollHeight; };
  useKeys([["G", "To the end of the conversation", toEnd], ["i", "Write a prompt", () => document.getElementById("prompt")?.focus()]], []);

  const open = (session?.openPermissions ?? []).length ? session.openPermissions : [];
  return html`<div class="conversation">
    <div class="scroll-y chat" ref=${scroller} onScroll=${onScroll} tabindex="0" role="log" aria-label="Conversation" aria-live="off">
      <div ref=${content} class="chat-content">
        ${hidden > 0 && html`<p class="center"><button type="button" class="quiet" onClick=${() => more(50)}>Show the ${Math.min(50, hidden)} turns before</button></p>`}
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
  useLayoutEffect(() => { turn.drawn++; return () => { turn.drawn--; }; }, []);
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
    case "text": return html`<div class="text-item">${!item.growing && item.length > 40 && html`<div class="item-tools"><${Copy} text=${() => String(item.text)} label="Copy the text"/></div>`}<${Markdown} source=${item.source} rev=${item.rev.value}/>${item.isCut && html`<p class="dim">The rest of this text is too long for the page.</p>`}</div>`;
    case "thinking": return html`<${Thinking} item=${item} rev=${item.rev.value}/>`;
    case "tool": return html`<${Tool} item=${item} rev=${item.rev.value} sessionId=${sessionId}/>`;
    case "image": return html`<${Image} item=${item}/>`;
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
    const pictures = item.items.filter((child) => child.kind === "image" && child.isOutput);
    const children = item.items.filter((child) => !pictures.includes(child));
    const nested = children.length > 0;
    const isOpen = open ?? (nested || pictures.length > 0 || item.diffs.size > 0 || failed);
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
        ${nested && html`<div class="nested" role="group" aria-label="Sub-agent">${children.map((child) => html`<${Item} key=${child.id} item=${child} sessionId=${sessionId}/>`)}</div>`}
        ${pictures.map((child) => html`<${Image} key=${child.id} item=${child}/>`)}
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

/** Picture of the answer, or of a tool's output. */
function Image({ item }) {
  const known = /^image\/(?:png|jpeg|gif|webp)$/.test(item.mimeType) && /^[A-Za-z0-9+/=]+$/.test(item.data ?? "");
  if (!known) return html`<p class="dim">A picture (${safe(item.mimeType, 40)}, ${bytes(item.bytes)}) that is not shown: ${item.data ? "the page does not show this type" : "it is too large"}.</p>`;
  return html`<img class="picture" src=${`data:${item.mimeType};base64,${item.data}`} alt=${item.isOutput ? "Picture from the tool" : "Picture of the agent"}/>`;
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
