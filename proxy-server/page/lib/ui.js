// Preact, htm and signals under one name, and the small parts that several views use.
import {
  h, render, Fragment, Component, createRef, useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback,
  signal, computed, effect, batch, useSignal, useComputed, useSignalEffect, htm,
} from "../vendor/preact.mjs";
import { safe } from "./text.js";

export const html = htm.bind(h);
export {
  h, render, Fragment, Component, createRef, useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback,
  signal, computed, effect, batch, useSignal, useComputed, useSignalEffect,
};

/** Time now, each second while the page is visible. */
export const now = signal(Date.now());
setInterval(() => { if (!document.hidden) now.value = Date.now(); }, 1000);
document.addEventListener("visibilitychange", () => { now.value = Date.now(); });

/** Messages for a moment at the lower edge: {id, text, kind}. */
export const toasts = signal([]);
let lastToast = 0;
export function toast(text, kind = "info") {
  const id = ++lastToast;
  toasts.value = [...toasts.value.slice(-3), { id, text: String(text), kind }];
  setTimeout(() => { toasts.value = toasts.value.filter((other) => other.id !== id); }, kind === "error" ? 9000 : 4000);
}

/** Runs a call of the API for a button: an error is a toast. */
export async function attempt(work, done) {
  try {
    const result = await work();
    if (done) toast(done);
    return result;
  } catch (error) {
    toast(error.message, "error");
    return undefined;
  }
}

const STATES = {
  starting: "starting", idle: "idle", busy: "busy", asking: "asking", suspended: "suspended", ended: "ended", failed: "failed", handedOver: "handed over",
};

/** State of a session, as a word with a colour. A turn that waits for a person is `asking`. */
export function StateBadge({ state, session }) {
  const asks = state === "busy" && session.openPermissions?.length > 0;
  const shown = session.ending ? "ending" : asks ? "asking" : state;
  return html`<span class=${`state state-${shown}`}>${STATES[shown] ?? shown}</span>`;
}

/** What the agent's own screen has reported, where the session has one. An unknown status stays unknown. */
export function ScreenBadge({ session, detail }) {
  const status = session.screenStatus;
  if (!status && (session.surface ?? "machine") === "machine") return null;
  const more = detail && detail.status === status ? detail.detail : null;
  return html`<span class="screen-status" title=${more ? `The agent's own screen: ${safe(more, 200)}` : status ? "Status of the agent's own screen" : "It has a screen of its own, which reports no status"}><span aria-hidden="true">▣</span><span class="sr">screen: </span>${status ? html` <bdi>${safe(status, 40)}</bdi>` : html`<span class="sr">unknown</span>`}</span>`;
}

/** Share of something, as a bar with a label. */
export function Bar({ value, max, label, title }) {
  const share = max > 0 ? Math.min(1, value / max) : 0;
  const kind = share > 0.9 ? "high" : share > 0.7 ? "mid" : "low";
  return html`<span class=${`bar bar-${kind}`} role="meter" aria-valuenow=${Math.round(share * 100)} aria-valuemin="0" aria-valuemax="100"
      aria-label=${title} title=${title}>
    <span class="bar-fill" style=${{ width: `${share * 100}%` }}></span><span class="bar-text">${label}</span></span>`;
}

/** Course of a value, as a line. */
export function Spark({ values, max, label, wide = 60 }) {
  const top = max ?? Math.max(1e-9, ...values);
  const step = wide / 59;
  const begin = wide - (values.length - 1) * step;
  const points = values.map((value, at) => `${(begin + at * step).toFixed(1)},${(15 - 14 * Math.min(1, value / top)).toFixed(1)}`).join(" ");
  return html`<svg class="spark" viewBox=${`0 0 ${wide} 16`} width=${wide} height="16" role="img" aria-label=${label}>
    <polyline points=${points} fill="none" stroke="currentColor" stroke-width="1.2"/></svg>`;
}

/** Button that copies text. */
export function Copy({ text, label = "Copy", children = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch (error) {
      toast(`Copying failed: ${error.message}`, "error");
    }
  };
  return html`<button type="button" class="quiet small" onClick=${copy} aria-label=${label}>${done ? "Copied" : children}</button>`;
}

/** Modal dialog. Escape and the outside close it. */
export function Dialog({ title, onClose, children, wide, labelled }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const dialog = box.current;
    if (dialog && !dialog.open) dialog.showModal();
    return () => dialog?.close();
  }, []);
  return html`<dialog ref=${box} class=${wide ? "wide" : ""} aria-label=${labelled ?? title} onClose=${onClose}
      onClick=${(event) => { if (event.target === box.current) onClose(); }}>
    <div class="dialog-body">
      <header class="dialog-head"><h2>${title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
      ${children}
    </div></dialog>`;
}

/** Question before something that cannot be undone. */
export const question = signal(null);
export function ask(text, action, danger = true) {
  return new Promise((resolve) => { question.value = { text, action, danger, resolve }; });
}
export function Question() {
  const asked = question.value;
  if (!asked) return null;
  const answer = (value) => { question.value = null; asked.resolve(value); };
  return html`<${Dialog} title=${asked.action} onClose=${() => answer(false)}>
    <p class="prewrap">${asked.text}</p>
    <div class="row end"><button type="button" onClick=${() => answer(false)}>Cancel</button>
      <button type="button" class=${asked.danger ? "danger" : "primary"} autofocus onClick=${() => answer(true)}>${asked.action}</button></div>
  <//>`;
}

/** Text of an agent in one line: nothing in it is markup, or hides. */
export function Line({ text, class: name = "" }) {
  return html`<bdi class=${`line ${name}`} title=${safe(text, 600)}>${safe(text, 300)}</bdi>`;
}

/** Long text of an agent: cut, with a button for the rest of it. */
export function LongText({ text, class: name = "", limit = 4000, lines = 60, label = "text", show = safe }) {
  const [size, setSize] = useState(1);
  const value = String(text ?? "");
  let end = Math.min(value.length, limit * size);
  let at = -1;
  for (let line = 0; line < lines * size && at < end; line++) {
    at = value.indexOf("\n", at + 1);
    if (at < 0) break;
    if (line === lines * size - 1) end = Math.min(end, at);
  }
  const rest = value.length - end;
  return html`<div class="long"><pre class=${`text ${name}`} dir="auto" tabindex="0" aria-label=${label}>${show(value.slice(0, end), end + 1)}</pre>
    ${rest > 0 && html`<button type="button" class="quiet small" onClick=${() => setSize(size * 4)}>Show more (${rest.toLocaleString("en")} more characters)</button>`}
    ${size > 1 && html`<button type="button" class="quiet small" onClick=${() => setSize(1)}>Show less</button>`}</div>`;
}
