// Receipt of a kill: who was ended, how, by whom, and the proof that nothing is left.
import { html } from "../lib/ui.js";
import { exitText } from "../lib/conversation.js";
import { safe } from "../lib/text.js";

const CAUSES = { killSession: "kill of the session", killAll: "kill of all but the agent", killProcess: "kill of a process", killTree: "kill of a tree", abortTurn: "abort of the turn", agentExit: "the agent's exit", suspend: "suspend", shutdown: "end of the daemon" };

/** Causes of which the session outlives the kill. */
const PARTS = new Set(["killAll", "killProcess", "killTree", "abortTurn"]);

export function isProven(receipt) {
  return receipt.survivors.length === 0 && receipt.proof !== "none" && receipt.cgroupEmpty !== false && receipt.unmarked !== false;
}

function proofText(proof) {
  if (proof === "noChildren") return "the kernel says that the session's subreaper has no child left (waitpid is ECHILD)";
  if (proof === "processGone") return "the pidfds of all that was to end say that they are gone";
  if (proof === "none") return "none: something survived, may have survived, or the kill ran out of time";
  if (proof?.quietRounds) return `${proof.quietRounds} rounds of the fork server with no process of the session left`;
  return JSON.stringify(proof);
}

export function outcomeText(outcome) {
  if (outcome === "survived") return "STILL ALIVE";
  if (outcome === "gone") return "gone";
  if (outcome?.ended !== undefined) return exitText(outcome.ended);
  return "–";
}

/** True for a process that did not end on the first, polite signal. */
export const resisted = (entry) => entry.outcome?.ended?.signal === 9;

export function micros(value) {
  return value < 1000 ? `${value} µs` : value < 1_000_000 ? `${(value / 1000).toFixed(1)} ms` : `${(value / 1_000_000).toFixed(2)} s`;
}

export function Receipt({ receipt }) {
  if (!receipt) return html`<p class="error">Nobody could make a receipt: see the processes of this machine.</p>`;
  const proven = isProven(receipt);
  const ended = receipt.processes.filter((entry) => entry.outcome !== "survived").length + (receipt.omitted ?? 0);
  return html`<div class="receipt">
    <p class=${proven ? "proven" : "error"} role="status"><strong>${!proven ? "NOT proven" : PARTS.has(receipt.cause) ? "They are gone" : "Nothing is left"}</strong>:
      ${" "}${ended} ${ended === 1 ? "process" : "processes"} ended in ${micros(receipt.durationUs)}, ${receipt.survivors.length} ${receipt.survivors.length === 1 ? "survivor" : "survivors"}</p>
    <dl class="proof">
      <div><dt>Cause</dt><dd>${CAUSES[receipt.cause] ?? safe(receipt.cause, 60)}</dd></div>
      <div><dt>Layers</dt><dd>${safe(receipt.layers.join(" + "), 200)}</dd></div>
      <div><dt>Rounds</dt><dd>${receipt.rounds}</dd></div>
      <div><dt>Proof</dt><dd>${safe(proofText(receipt.proof), 300)}</dd></div>
      ${receipt.cgroupEmpty !== null && html`<div><dt>Cgroup</dt><dd>${receipt.cgroupEmpty ? "empty" : "NOT empty"}</dd></div>`}
      ${receipt.unmarked !== null && html`<div><dt>Marker</dt><dd>${receipt.unmarked ? "no process on the machine carries the session's marker" : "a process STILL carries the session's marker"}</dd></div>`}
    </dl>
    <div class="table-scroll" tabindex="0" role="region" aria-label="Processes of the receipt"><table class="plain ended"><thead><tr><th scope="col" class="num">Pid</th><th scope="col">Ended by</th><th scope="col">Reaped by</th><th scope="col">Command</th></tr></thead>
      <tbody>${receipt.processes.map((entry) => html`<tr key=${`${entry.id.pid}.${entry.id.startTime}`} class=${entry.outcome === "survived" ? "bad" : ""}><td class="num">${entry.id.pid}</td>
        <td>${outcomeText(entry.outcome)}${resisted(entry) ? html` <span class="mark-word">resisted</span>` : null}</td><td>${{ proxy: "proxy", forkServer: "fork server" }[entry.reapedBy] ?? safe(entry.reapedBy ?? "–", 30)}</td>
        <td class="mono"><bdi>${safe(entry.command || "[gone before it could be read]", 400)}</bdi></td></tr>`)}</tbody></table></div>
    ${receipt.omitted > 0 && html`<p class="dim">${receipt.omitted} more deaths are left out.</p>`}
    ${receipt.unattributed?.length > 0 && html`<p class="error">${receipt.unattributed.length} processes may belong to another session whose proxy died at the same moment.</p>`}
  </div>`;
}
