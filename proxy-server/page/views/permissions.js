// Permission requests: cards with answers by button or key.
import { html, useState, attempt, Line, LongText } from "../lib/ui.js";
import { post, segment, caller } from "../lib/api.js";
import { openPermissions, refresh, titleOf, sessions } from "../lib/state.js";
import { name } from "../lib/settings.js";
import { offer, decline, askForNotifications } from "../lib/notify.js";
import { useKeys } from "../lib/keys.js";
import { sessionLink } from "../lib/route.js";
import { safe, exact, pretty } from "../lib/text.js";
import { Diff } from "../lib/diff.js";

const isAllow = (option) => /^allow/.test(option.kind ?? "");

/** Longest title that is whole in its line, about. */
const TITLE = 80;

/** What the input of a request says beside its title, its command and its changes. */
function rest(request, hasDiffs) {
  const { input } = request;
  if (input === null || input === undefined) return null;
  if (typeof input !== "object" || Array.isArray(input)) return hasDiffs ? null : input;
  const known = (value) => value === request.command || value === request.title;
  const members = Object.entries(input).filter(([, value]) => !known(value));
  return members.length ? Object.fromEntries(members) : null;
}

/** An input as text: the long texts in it as they are, and not in a line with escapes. */
function readable(value) {
  if (typeof value !== "object" || Array.isArray(value)) return pretty(value);
  return Object.entries(value).map(([name, member]) => {
    const text = pretty(member);
    return text.includes("\n") ? `${name}:\n${text.replace(/^/gm, "  ")}` : `${name}: ${text}`;
  }).join("\n");
}

/** Sends an answer. */
export function answer(sessionId, request, reply) {
  const body = { answer: reply };
  const by = name.value || caller.value?.user || caller.value?.name;
  if (by) body.by = by;
  return attempt(async () => {
    await post(`v1/sessions/${segment(sessionId)}/permissions/${segment(request.id)}`, body);
    refresh();
  });
}

/** A request that waits. `hot` cards take the keys. */
export function PermissionCard({ sessionId, request, hot, showSession, diffs }) {
  const [busy, setBusy] = useState(false);
  const [reason, setReason] = useState(null);
  const send = async (reply) => { setBusy(true); await answer(sessionId, request, reply); setBusy(false); };
  const options = request.options ?? [];
  const allow = options.find((option) => option.kind === "allowOnce") ?? options.find(isAllow);
  const deny = options.find((option) => option.kind === "rejectOnce") ?? options.find((option) => !isAllow(option));
  const choose = (option) => send(option ? { option: option.id } : "deny");
  useKeys(hot && !busy ? [
    ["a", "Allow what the agent asks", () => send(allow ? { option: allow.id } : "allow")],
    ["d", "Deny what the agent asks", () => choose(deny)],
    ["alt+a", "The same while you type", () => send(allow ? { option: allow.id } : "allow")],
    ["alt+d", "The same while you type", () => choose(deny)],
    ...options.slice(0, 9).map((option, at) => [String(at + 1), `Answer: ${safe(option.name, 40)}`, () => choose(option)]),
  ] : [], [hot, busy, request.id]);
  const more = rest(request, Boolean(diffs));
  const session = showSession && sessions.value.get(sessionId);
  return html`<section class="card permission" aria-label=${`Question of the agent: ${safe(request.title, 200)}`}>
    <header><span class="badge" aria-hidden="true">?</span><strong><${Line} text=${request.title || request.tool}/></strong>
      <span class="dim">${safe(request.tool, 60)}${request.kind && request.kind !== request.tool ? ` · ${safe(request.kind, 40)}` : ""}</span></header>
    ${session && html`<p class="dim"><a href=${sessionLink(sessionId)}>${safe(titleOf(session) ?? sessionId, 80)}</a> · ${safe(session.agent, 40)}</p>`}
    ${!request.command && request.title?.length > TITLE && html`<${LongText} text=${request.title} show=${exact} lines=${12} label="What the agent asks"/>`}
    ${request.command && html`<${LongText} text=${request.command} show=${exact} class="command" lines=${60} label="Command"/>`}
    ${request.paths?.length > 0 && html`<${LongText} text=${request.paths.map((path) => path.replace(/\n/g, "\u240a")).join("\n")} show=${exact} class="paths" lines=${12} label="Paths"/>`}
    ${diffs && [...diffs.values()].map((diff) => (diff.hunks ?? []).map((hunk) => html`<${Diff} path=${diff.path} before=${hunk.oldText} after=${hunk.newText}/>`))}
    ${more !== null && html`<details open=${!diffs}><summary>Details</summary><${LongText} text=${readable(more)} show=${exact} lines=${60} limit=${16000} label="Details of the request"/></details>`}
    <div class="row wrap answers">
      ${options.map((option, at) => html`<button type="button" key=${option.id} disabled=${busy} class=${isAllow(option) ? (option === allow ? "primary" : "") : "danger-quiet"}
        onClick=${() => choose(option)}>${exact(option.name || option.id)}${hot && at < 9 ? html` <kbd aria-hidden="true">${option === allow ? "a" : option === deny ? "d" : at + 1}</kbd>` : null}</button>`)}
      ${!options.length && html`<button type="button" class="primary" disabled=${busy} onClick=${() => send("allow")}>Allow</button><button type="button" class="danger-quiet" disabled=${busy} onClick=${() => send("deny")}>Deny</button>`}
      ${reason === null ? html`<button type="button" class="quiet" onClick=${() => setReason("")}>Deny with words…</button>` : html`<form class="row grow" onSubmit=${(event) => { event.preventDefault(); send({ denyWith: { message: reason } }); }}>
        <input type="text" class="grow" aria-label="What the agent is told" placeholder="What the agent is told" value=${reason} onInput=${(event) => setReason(event.target.value)}/><button type="submit" disabled=${busy || !reason}>Deny</button></form>`}
    </div></section>`;
}

/** Asks once whether the browser may tell of questions. */
export function NotifyOffer() {
  if (!offer.value) return null;
  return html`<p class="row notify-offer"><span class="grow dim">Shall this browser notify you when an agent asks?</span><button type="button" class="small" onClick=${askForNotifications}>Yes</button><button type="button" class="quiet small" onClick=${decline}>No</button></p>`;
}

/** All requests that are open, over all sessions. */
export function OpenPermissions({ onClose }) {
  const open = openPermissions.value;
  return html`<aside class="inbox" aria-label="Open questions of agents">
    <header class="row"><h2>Questions</h2><span class="spacer"></span><button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
    <${NotifyOffer}/>
    ${open.map(({ sessionId, request }) => html`<${PermissionCard} key=${`${sessionId}/${request.id}`} sessionId=${sessionId} request=${request} showSession/>`)}
  </aside>`;
}
