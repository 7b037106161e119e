// What all views share: the sessions, the open permission requests, and what this machine offers. Lists are asked for again and again,
// and at once where an event says that something has changed.
import { signal, computed, batch } from "./ui.js";
import { get, getIfThere, follow, loginNeeded } from "./api.js";
import { isPlain } from "./text.js";

/** Sessions as `GET /v1/sessions` has them, by id; with what a record adds. */
export const sessions = signal(new Map());
/** True once the first list has come. */
export const loaded = signal(false);
export const listError = signal(null);
/** Time for the next list, in milliseconds. */
const PERIOD = 2000;
/** Shortest time between two lists. */
const SHORTEST = 450;

export const openPermissions = computed(() => {
  const open = [];
  for (const session of sessions.value.values()) {
    for (const request of session.openPermissions ?? []) open.push({ sessionId: session.sessionId, agent: session.agent, title: titleOf(session), request });
  }
  return open;
});

/** The fleet of the node that answers, as that sees it: its name, the nodes, and by session the node that has it; null without one. */
export const fleet = signal(null);
/** Name of the node; null until it is known, false for a daemon that is none. */
let node = null;
let fleetAt = 0;

export const nodeOf = (session) => fleet.value?.owners.get(session.sessionId) ?? null;

/** Asks for the nodes and the owners. A list without them is a list still. */
async function loadFleet() {
  node ??= (await get("v1/health")).daemon?.node ?? false;
  if (!node) return;
  const [nodes, owned] = await Promise.all([get("v1/fleet/nodes"), get("v1/fleet/sessions")]);
  fleet.value = { node, nodes, owners: new Map(owned.map((session) => [session.sessionId, session.node])) };
}

let records = new Map();
let recordsAt = 0;
let uses = new Map();
let usesAt = 0;
let timer = null;
let running = false;
/** True if a session came of which no record was asked for, and whose title is not told otherwise. */
let hasNew = false;
let again = false;
let lastAt = 0;

export function titleOf(session) {
  return session.title ?? records.get(session.sessionId)?.config?.lifecycle?.title ?? null;
}

export function stateOf(session) {
  if (session.handedOver) return "handedOver";
  const { state } = session;
  const word = typeof state === "string" ? state : Object.keys(state ?? {})[0];
  if (word === "ended") {
    const reason = state.ended?.reason;
    if (reason && typeof reason === "object" && ("failed" in reason || "proxyDied" in reason)) return "failed";
  }
  return word ?? session.status ?? "ended";
}

export const isOver = (session) => ["ended", "failed"].includes(stateOf(session));
export const isLive = (session) => ["starting", "idle", "busy"].includes(stateOf(session));

/** Values of a setting (`model`, `mode`, `thinking`) that sessions of an agent have or had, and these; no agent tells all that it offers. */
export function valuesOf(agent, name, usual = []) {
  const current = `current${name[0].toUpperCase()}${name.slice(1)}`;
  const used = [...sessions.value.values()].filter((session) => session.agent === agent).flatMap((session) => [session[current], session[name]]);
  return [...new Set([...usual, ...used].filter((value) => value && isPlain(value)))].slice(0, 30);
}

/** Tokens that went through a session. */
export function tokensOf(session) {
  const usage = session.metrics?.usage ?? session.usage;
  if (!usage || (usage.inputTokens === null && usage.outputTokens === null)) return null;
  return (usage.inputTokens ?? 0) + (usage.outputTokens ?? 0);
}

export const costOf = (session) => (session.metrics?.usage ?? session.usage)?.costUsd ?? null;

async function load() {
  const time = Date.now();
  const measured = time - usesAt >= PERIOD - 100;
  if (time - recordsAt > 15_000 || (hasNew && time - recordsAt > 900)) {
    recordsAt = time;
    get("v1/records").then((kept) => { records = new Map(kept.map((record) => [record.sessionId, record])); refresh(); }, () => null);
  }
  if (node !== false && time - fleetAt >= PERIOD - 100) {
    fleetAt = time;
    loadFleet().catch(() => null);
  }
  const list = await get("v1/sessions", measured ? { processUse: true } : {});
  if (measured) {
    usesAt = time;
    uses = new Map(list.map((session) => [session.sessionId, session.processUse]));
  }
  hasNew = list.some((session) => session.title === undefined && !records.has(session.sessionId));
  if (hasNew) refresh();
  const found = new Map();
  for (const session of list) {
    if (!session.processUse) session.processUse = uses.get(session.sessionId) ?? null;
    found.set(session.sessionId, session);
  }
  for (const record of records.values()) {
    if (!found.has(record.sessionId) && !record.archived) found.set(record.sessionId, fromRecord(record));
  }
  batch(() => {
    sessions.value = found;
    loaded.value = true;
    listError.value = null;
  });
}

/** A session that only its record tells of. */
function fromRecord(record) {
  const { config } = record;
  return {
    sessionId: record.sessionId, agent: config.agent, userId: config.userId, workspaceId: config.workspaceId, cwd: config.cwd, model: config.model,
    mode: config.mode, thinking: config.thinking, startedAt: record.createdAt, state: record.reason ? { [record.status]: { reason: record.reason } } : record.status,
    handedOver: record.handedOver, openPermissions: [], queued: [], turns: record.turns, metrics: { usage: record.usage }, processUse: null,
    lastOffset: record.lastOffset, title: config.lifecycle?.title ?? null, isRecord: true, resumable: record.resumable, surface: config.surface ?? "machine",
  };
}

/** Asks for the list again, soon. */
export function refresh() {
  if (running) { again = true; return; }
  clearTimeout(timer);
  timer = setTimeout(round, Math.max(0, SHORTEST - (Date.now() - lastAt)));
}

async function round() {
  running = true;
  lastAt = Date.now();
  try {
    if (!loginNeeded.value) await load();
  } catch (error) {
    listError.value = error.message;
  }
  running = false;
  const wait = document.hidden ? 6000 : PERIOD;
  clearTimeout(timer);
  timer = setTimeout(round, again ? SHORTEST : wait);
  again = false;
}

/** Begins to follow the sessions. */
export function start() {
  round();
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
}

/** Follows the events of all sessions while a list is shown, so that it changes at once. */
export function followAll() {
  return follow("v1/events", {
    query: { from: "latest", raw: false, type: "session:*,turn:*,permission:*,terminal:*,stream:complete,stream:tool_start,stream:tool_end,process:*" },
    onEvents: refresh,
  });
}

/** What the machine offers, asked for once: agents, profiles, model configurations. */
export const offers = signal(null);
export async function loadOffers() {
  const [agents, profiles, models] = await Promise.all([
    get("v1/agents").catch(() => []), getIfThere("v1/profiles").catch(() => null), getIfThere("v1/models").catch(() => null),
  ]);
  offers.value = { agents, profiles: profiles ?? [], models: models ?? [] };
}

/** Checks of the system; null until they were asked for, false where the server has none. They start sessions of their own. */
export const doctor = signal(null);
export async function loadDoctor() {
  doctor.value = null;
  const found = await getIfThere("v1/doctor", {}, { timeout: 120_000 }).catch(() => null);
  doctor.value = Array.isArray(found) ? found : found?.checks ?? false;
}
