// A kill as it happens: each process in its scope, how it ends, and at last the receipt.
import { html, signal, useEffect, useState, Dialog, now } from "../lib/ui.js";
import { get, post, call, segment } from "../lib/api.js";
import { refresh } from "../lib/state.js";
import { exitText } from "../lib/conversation.js";
import { safe, span } from "../lib/text.js";
import { Receipt } from "./receipt.js";

/** Milliseconds between SIGTERM and SIGKILL, as the server has it. */
const GRACE = 2000;

const running = signal(null);

const keyOf = (id) => `${id.pid}.${id.startTime}`;
export const commandOf = (process) => [process.command, ...(process.args ?? [])].filter(Boolean).join(" ");

/** Processes in the scope of a kill. */
function inScope(processes, scope) {
  const living = processes.filter((process) => process.status === "running");
  if (scope.kind === "session") return living;
  if (scope.kind === "all") return living.filter((process) => !process.tracked);
  const wanted = new Set([scope.pid]);
  if (scope.kind === "tree") {
    for (let grown = true; grown;) {
      grown = false;
      for (const process of living) if (wanted.has(process.ppid) && !wanted.has(process.id.pid)) { wanted.add(process.id.pid); grown = true; }
    }
  }
  return living.filter((process) => wanted.has(process.id.pid));
}

/** Kills: `{kind: "session" | "all" | "tree" | "process", pid}`. */
export async function kill(sessionId, scope, model) {
  const path = `v1/sessions/${segment(sessionId)}`;
  const before = await get(`${path}/processes`).catch(() => []);
  const state = { sessionId, scope, model, startedAt: Date.now(), targets: inScope(before, scope), gone: new Map(), receipt: null, error: null };
  running.value = state;
  const body = scope.kind === "session" ? {} : scope.kind === "all" ? { keepAgent: true } : { pid: scope.pid, tree: scope.kind === "tree" };
  const change = (fields) => { if (running.value?.startedAt === state.startedAt) running.value = { ...running.value, ...fields }; };
  try {
    change({ receipt: await post(`${path}/kill`, body, { timeout: 60_000 }), endedAt: Date.now() });
  } catch (error) {
    change({ error: error.message });
  }
  refresh();
}

const TITLES = { session: "Kill of the session", all: "Kill of all but the agent", tree: "Kill of a tree", process: "Kill of a process" };

export function KillPanel() {
  const kill = running.value;
  const [, setTick] = useState(0);
  const busy = kill && !kill.receipt && !kill.error;
  useEffect(() => {
    if (!busy) return undefined;
    const timer = setInterval(() => setTick((tick) => tick + 1), 100);
    return () => clearInterval(timer);
  }, [busy]);
  if (!kill) return null;
  void kill.model?.processRev.value;
  const seen = kill.model?.processes ?? new Map();
  const time = (kill.endedAt ?? Math.max(now.value, Date.now())) - kill.startedAt;
  const left = kill.targets.filter((process) => !seen.get(keyOf(process.id))?.endedAt).length;
  return html`<${Dialog} title=${TITLES[kill.scope.kind]} wide onClose=${() => { running.value = null; }}>
    ${kill.error && html`<p class="error" role="alert">${safe(kill.error, 600)}</p>`}
    ${kill.receipt ? html`<${Receipt} receipt=${kill.receipt}/>` : !kill.error && html`<div class="killing" aria-live="polite">
      <p role="status"><strong>${span(time)}</strong> · ${left} of ${kill.targets.length} still there · ${time < GRACE ? "asked to end (SIGTERM)" : "SIGKILL for those that resist"}</p>
      <table class="plain ended"><thead><tr><th scope="col" class="num">Pid</th><th scope="col">State</th><th scope="col">Command</th></tr></thead>
      <tbody>${kill.targets.map((process) => {
        const end = seen.get(keyOf(process.id));
        return html`<tr key=${keyOf(process.id)}><td class="num">${process.id.pid}</td>
          <td>${end?.endedAt ? html`<span class="proven">${exitText(end.exit)}</span>` : time < 400 ? "signalled" : html`<span class="mark-word">resists</span>`}</td>
          <td class="mono"><bdi>${safe(commandOf(process), 300)}</bdi></td></tr>`;
      })}</tbody></table></div>`}
    <div class="row end"><button type="button" onClick=${() => { running.value = null; }}>${busy ? "Go on without looking" : "Close"}</button></div>
  <//>`;
}

/** Sends a signal to one process. */
export async function sendSignal(sessionId, process, name) {
  await call("POST", `v1/sessions/${segment(sessionId)}/processes/${process.id.pid}/signal`, { body: { signal: name, startTime: process.id.startTime } });
}
