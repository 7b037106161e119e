// All sessions: live, sorted, filtered, grouped. Only the rows in sight are drawn.
import { html, useEffect, useLayoutEffect, useRef, useState, useMemo, StateBadge, ScreenBadge, now } from "../lib/ui.js";
import { sessions, loaded, listError, titleOf, stateOf, tokensOf, costOf, followAll, isLive, fleet, nodeOf } from "../lib/state.js";
import { caller } from "../lib/api.js";
import { remembered, remember } from "../lib/settings.js";
import { useKeys } from "../lib/keys.js";
import { go, sessionLink } from "../lib/route.js";
import { safe, bytes, count, cost, percent, age } from "../lib/text.js";

const ORDER = { busy: 0, starting: 1, idle: 2, handedOver: 3, suspended: 4, failed: 5, ended: 6 };

/** Columns: [name, title, value to sort by, class]. */
const COLUMNS = [
  ["state", "State", (session) => ORDER[stateOf(session)] ?? 9, "c-state"],
  ["title", "Session", (session) => (titleOf(session) ?? session.sessionId).toLowerCase(), "c-title"],
  ["agent", "Agent", (session) => session.agent, "c-agent"],
  ["node", "Node", (session) => nodeOf(session) ?? "", "c-node"],
  ["model", "Model", (session) => session.currentModel ?? session.model ?? "", "c-model"],
  ["user", "User", (session) => session.userId ?? "", "c-user"],
  ["cwd", "Directory", (session) => session.cwd ?? "", "c-cwd"],
  ["turns", "Turns", (session) => session.turns ?? 0, "c-turns num"],
  ["tokens", "Tokens", (session) => tokensOf(session) ?? -1, "c-tokens num"],
  ["cost", "Cost", (session) => costOf(session) ?? -1, "c-cost num"],
  ["cpu", "CPU", (session) => session.processUse?.cpuPercent ?? -1, "c-cpu num"],
  ["memory", "Memory", (session) => session.processUse?.rssBytes ?? -1, "c-memory num"],
  ["processes", "Procs", (session) => session.processUse?.processes ?? -1, "c-procs num"],
  ["age", "Age", (session) => -Date.parse(session.startedAt), "c-age num"],
];

/** Columns that are shown: that of the nodes where there is a fleet. */
const shownColumns = () => COLUMNS.filter(([name]) => name !== "node" || fleet.value);

/** Columns whose largest value is wanted first. */
const DESCENDING = new Set(["turns", "tokens", "cost", "cpu", "memory", "processes"]);

const FILTERS = [["all", "All", () => true], ["live", "Live", isLive], ["asks", "Asking", (session) => session.openPermissions?.length > 0],
  ["busy", "Busy", (session) => stateOf(session) === "busy"], ["suspended", "Suspended", (session) => ["suspended", "handedOver"].includes(stateOf(session))],
  ["ended", "Ended", (session) => ["ended", "failed"].includes(stateOf(session))]];

function saved(name, fallback) {
  return remembered(`agent-proxy-list-${name}`) ?? fallback;
}

export function Sessions() {
  const [filter, setFilter] = useState(saved("filter", "all"));
  const [sort, setSort] = useState(saved("sort", "age"));
  const [group, setGroup] = useState(saved("group", ""));
  const [text, setText] = useState("");
  const search = useRef(null);
  const box = useRef(null);
  // Who sees one user's sessions alone may not follow those of all.
  const who = caller.value;
  useEffect(() => (who === undefined || who?.user ? undefined : followAll()), [who]);
  useEffect(() => {
    remember("agent-proxy-list-filter", filter);
    remember("agent-proxy-list-sort", sort);
    remember("agent-proxy-list-group", group);
  }, [filter, sort, group]);
  useKeys([
    ["/", "Search the sessions", () => search.current?.focus()],
    ["j", "Next row", () => move(box.current, 1)], ["ArrowDown", "Next row", () => move(box.current, 1)],
    ["k", "Row before", () => move(box.current, -1)], ["ArrowUp", "Row before", () => move(box.current, -1)],
  ], []);

  const list = sessions.value;
  const counts = useMemo(() => Object.fromEntries(FILTERS.map(([name, , fits]) => [name, [...list.values()].filter(fits).length])), [list]);
  const rows = useMemo(() => arrange([...list.values()], { filter, sort, group, text }), [list, filter, sort, group, text]);
  const chosen = sort.replace(/^-/, "");

  if (!loaded.value) {
    return html`<div class="empty">${listError.value ? html`<p class="error" role="alert">${safe(listError.value)}</p>` : html`<p aria-busy="true">Loading…</p>`}</div>`;
  }
  return html`<section class="list-view" aria-label="Sessions">
    <h1 class="sr">Sessions</h1>
    <div class="toolbar">
      <div class="chips" role="group" aria-label="Filter by state">${FILTERS.map(([name, title]) => html`<button type="button" key=${name} class="chip" aria-pressed=${filter === name}
        onClick=${() => setFilter(name)}>${title} <span class="dim">${counts[name]}</span></button>`)}</div>
      <input ref=${search} type="search" placeholder="Search  /" aria-label="Search the sessions" value=${text} onInput=${(event) => setText(event.target.value)}
        onKeyDown=${(event) => { if (event.key === "Escape") { setText(""); event.target.blur(); } else if (event.key === "ArrowDown" || event.key === "Enter") { event.preventDefault(); move(box.current, 1); } }}/>
      <label class="inline">Group <select value=${group} onChange=${(event) => setGroup(event.target.value)}><option value="">none</option><option value="user">user</option><option value="agent">agent</option></select></label>
      <label class="inline phone-only">Sort <select value=${chosen} onChange=${(event) => setSort(event.target.value)}>${shownColumns().map(([name, title]) => html`<option value=${name}>${title}</option>`)}</select></label>
      <span class="spacer"></span>
      <button type="button" class="primary" onClick=${() => go("#/?new")}>New session</button>
    </div>
    ${rows.length === 0
      ? html`<div class="empty">${list.size === 0
        ? html`<p>No sessions yet.</p><p class="dim">Start one here, or with <code>agent-proxy start</code>.</p><p><button type="button" class="primary" onClick=${() => go("#/?new")}>New session</button></p>`
        : html`<p>No session matches.</p><p><button type="button" onClick=${() => { setText(""); setFilter("all"); }}>Show all</button></p>`}</div>`
      : html`<${Rows} rows=${rows} box=${box} sort=${sort} onSort=${(name) => setSort(chosen === name ? (sort.startsWith("-") ? name : `-${name}`) : DESCENDING.has(name) ? `-${name}` : name)}/>`}
  </section>`;
}

/** Moves the focus to the link of the next row. */
function move(box, by) {
  if (!box) return;
  const links = [...box.querySelectorAll("a.row-link")];
  const at = links.indexOf(document.activeElement);
  const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by];
  if (next) { next.focus({ preventScroll: false }); next.scrollIntoView({ block: "nearest" }); } else box.scrollBy(0, by * 200);
}

/** Filters, sorts and groups. A group's head is a row of its own. */
function arrange(list, { filter, sort, group, text }) {
  const fits = FILTERS.find(([name]) => name === filter)?.[2] ?? (() => true);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = list.filter((session) => fits(session) && words.every((word) => searchText(session).includes(word)));
  const down = sort.startsWith("-");
  const value = COLUMNS.find(([name]) => name === sort.replace(/^-/, ""))?.[2] ?? COLUMNS.at(-1)[2];
  const turn = down ? -1 : 1;
  const keyed = found.map((session) => [value(session), session]);
  keyed.sort(([a, one], [b, other]) => (a < b ? -turn : a > b ? turn : one.sessionId < other.sessionId ? -1 : 1));
  const sorted = keyed.map(([, session]) => session);
  if (!group) return sorted;
  const groups = new Map();
  for (const session of sorted) {
    const key = (group === "user" ? session.userId : session.agent) ?? "no user";
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(session);
  }
  return [...groups].sort(([a], [b]) => (a < b ? -1 : 1)).flatMap(([name, members]) => [{ group: name, members }, ...members]);
}

const texts = new WeakMap();
function searchText(session) {
  let text = texts.get(session);
  if (text === undefined) {
    text = [titleOf(session), session.sessionId, session.agent, session.model, session.currentModel, session.userId, session.workspaceId, session.cwd, stateOf(session), session.screenStatus].filter(Boolean).join(" ").toLowerCase();
    texts.set(session, text);
  }
  return text;
}

const narrow = matchMedia("(max-width: 760px)");

function Rows({ rows, box, sort, onSort }) {
  const [range, setRange] = useState([0, 60]);
  const [phone, setPhone] = useState(narrow.matches);
  const height = phone ? 62 : 32;
  const measure = () => {
    // A scroll event comes with the next frame, when the list may be gone already.
    if (!box.current) return;
    const { scrollTop, clientHeight } = box.current;
    const from = Math.max(0, Math.floor(scrollTop / height) - 8);
    const to = Math.ceil((scrollTop + clientHeight) / height) + 8;
    setRange((old) => (old[0] === from && old[1] === to ? old : [from, to]));
  };
  useLayoutEffect(() => {
    // For whoever measures how long a browser needs to the first list.
    if (!performance.getEntriesByName("first-view").length) performance.mark("first-view");
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    const change = () => setPhone(narrow.matches);
    narrow.addEventListener("change", change);
    return () => { observer.disconnect(); narrow.removeEventListener("change", change); };
  }, [height]);
  const [from, to] = [Math.min(range[0], Math.max(0, rows.length - 1)), Math.min(range[1], rows.length)];
  const chosen = sort.replace(/^-/, "");
  return html`<div class="scroll" ref=${box} onScroll=${measure} tabindex="-1">
    <table class="sessions" aria-rowcount=${rows.length + 1}>
      <thead><tr>${shownColumns().map(([name, title, , kind]) => html`<th key=${name} scope="col" class=${kind} aria-sort=${chosen === name ? (sort.startsWith("-") ? "descending" : "ascending") : "none"}>
        <button type="button" onClick=${() => onSort(name)}>${title}<span aria-hidden="true">${chosen === name ? (sort.startsWith("-") ? " ↓" : " ↑") : ""}</span></button></th>`)}</tr></thead>
      <tbody>
        ${from > 0 && html`<tr class="space" aria-hidden="true" style=${{ height: `${from * height}px` }}></tr>`}
        ${rows.slice(from, to).map((row, at) => row.members ? html`<${GroupRow} key=${`group ${row.group}`} row=${row}/>` : html`<${Row} key=${row.sessionId} session=${row} index=${from + at + 2}/>`)}
        ${to < rows.length && html`<tr class="space" aria-hidden="true" style=${{ height: `${(rows.length - to) * height}px` }}></tr>`}
      </tbody></table></div>`;
}

function GroupRow({ row }) {
  const sum = (value) => row.members.reduce((all, session) => all + (value(session) ?? 0), 0);
  return html`<tr class="group"><th scope="rowgroup" colspan=${shownColumns().length}><bdi>${safe(row.group, 60)}</bdi> <span class="dim">${row.members.length} · ${count(sum(tokensOf))} tokens · ${percent(sum((session) => session.processUse?.cpuPercent))} · ${bytes(sum((session) => session.processUse?.rssBytes))}</span></th></tr>`;
}

function shortPath(path) {
  const value = safe(path, 400);
  return value.length > 34 ? `…${value.slice(-33)}` : value;
}

function Row({ session, index }) {
  const title = titleOf(session);
  const state = stateOf(session);
  const use = isLive(session) ? session.processUse : null;
  const asks = session.openPermissions?.length ?? 0;
  const model = session.currentModel ?? session.model;
  return html`<tr aria-rowindex=${index} class=${`session is-${state}`} onClick=${(event) => { if (!event.target.closest("a, button")) go(sessionLink(session.sessionId)); }}>
    <td class="c-state">${state === "idle" && !session.ending && session.screenStatus ? html`<${ScreenBadge} session=${session}/>` : html`<${StateBadge} state=${state} session=${session}/>${isLive(session) && session.screenStatus && html` <${ScreenBadge} session=${session}/>`}`}</td>
    <td class="c-title"><a class="row-link" href=${sessionLink(session.sessionId)}><bdi>${safe(title ?? session.sessionId, 200)}</bdi></a>
      ${asks > 0 && html` <span class="badge" title="The agent waits for an answer">${asks}<span class="sr"> questions</span></span>`}
      ${session.queued?.length > 0 && html` <span class="dim" title="Prompts that wait">+${session.queued.length}</span>`}
      ${title && html` <span class="dim id">${safe(session.sessionId, 60)}</span>`}</td>
    <td class="c-agent">${safe(session.agent, 40)}</td>
    ${fleet.value && html`<td class="c-node"><bdi>${safe(nodeOf(session) ?? "–", 64)}</bdi></td>`}
    <td class="c-model"><bdi>${safe(model ?? "–", 60)}</bdi></td>
    <td class="c-user"><bdi>${safe(session.userId ?? "–", 40)}</bdi></td>
    <td class="c-cwd" title=${safe(session.cwd, 400)}><bdi>${shortPath(session.cwd ?? "–")}</bdi></td>
    <td class="c-turns num">${session.turns ?? 0}</td>
    <td class="c-tokens num">${count(tokensOf(session))}</td>
    <td class="c-cost num">${cost(costOf(session))}</td>
    <td class="c-cpu num">${percent(use?.cpuPercent)}</td>
    <td class="c-memory num">${bytes(use?.rssBytes)}</td>
    <td class="c-procs num">${use?.processes ?? "–"}</td>
    <td class="c-age num">${age(now.value - Date.parse(session.startedAt))}</td></tr>`;
}
