// Calls of the API. The login is a cookie from a login link, or a token that the user gives.
import { signal } from "./ui.js";

/** Address below which the server is mounted: this file is `page/VERSION/lib/api.js` there. */
export const mount = new URL("../../../", import.meta.url);
const TOKEN = "agent-proxy-token";

export const loginNeeded = signal(null);
/** True if the last call reached the server. */
export const online = signal(true);
/** Caller: {name, role, user}; null where the server does not tell, undefined until it is known. */
export const caller = signal(undefined);

let token = sessionStorage.getItem(TOKEN);

export function setToken(value) {
  token = value?.trim() || null;
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

export const hasToken = () => Boolean(token);

/** Error that the server answered with. */
export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || body?.title || `the server answered ${status}`);
    this.status = status;
    this.kind = body?.type ?? null;
  }
}

export function address(path, query) {
  const url = new URL(path.replace(/^\//, ""), mount);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

export const segment = (text) => encodeURIComponent(text).replace(/\./g, "%2E");

/** Subprotocols of a WebSocket: a browser sends no header of the page's own with it, so the token is one of them. */
export function socketProtocols() {
  if (!token) return [];
  const bytes = String.fromCharCode(...new TextEncoder().encode(token));
  return ["agent-proxy", `agent-proxy.bearer.${btoa(bytes).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "")}`];
}

export function headers(more) {
  const all = { Accept: "application/json", ...more };
  if (token) all.Authorization = `Bearer ${token}`;
  return all;
}

async function send(method, path, { query, body, signal: abort, timeout = 30_000, accept } = {}) {
  const init = { method, headers: headers(accept ? { Accept: accept } : {}), cache: "no-store" };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  const limits = timeout ? [AbortSignal.timeout(timeout)] : [];
  if (abort) limits.push(abort);
  if (limits.length) init.signal = AbortSignal.any(limits);
  let response;
  try {
    response = await fetch(address(path, query), init);
  } catch (error) {
    if (abort?.aborted) throw error;
    online.value = false;
    throw new Error(error.name === "TimeoutError" ? "the server did not answer in time" : "the server cannot be reached");
  }
  online.value = true;
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    const problem = new Problem(response.status, body);
    if (response.status === 401) loginNeeded.value = problem.message;
    throw problem;
  }
  return response;
}

export async function call(method, path, options) {
  const response = await send(method, path, options);
  if (response.status === 204) return null;
  return response.headers.get("content-type")?.includes("json") ? response.json() : response.text();
}

export const get = (path, query, options) => call("GET", path, { query, ...options });
export const post = (path, body = {}, options) => call("POST", path, { body, ...options });

/** Asks for something that this server may not have: null then. */
export async function getIfThere(path, query, options) {
  try {
    return await get(path, query, options);
  } catch (error) {
    if ([403, 404, 405, 501].includes(error.status) || error.kind?.endsWith("unsupported")) return null;
    throw error;
  }
}

export async function whoami() {
  caller.value = await getIfThere("v1/whoami").catch(() => null);
}

export async function logout() {
  await post("v1/logout").catch(() => null);
  setToken(null);
  location.reload();
}

/**
 * Follows a stream of server-sent events for good. It connects again by itself, after the last event that came.
 * `onEvents` gets whole batches; `onState` gets `connecting`, `live`, `lost` or `over`. While the page is hidden for long the
 * stream pauses: a browser has few connections to one server, and other windows want them.
 */
export function follow(path, { query, last = null, onEvents, onState = () => {} }) {
  let stopped = false;
  let abort = null;
  let failures = 0;
  let wake = null;
  let position = last;

  const stop = () => { stopped = true; abort?.abort(); wake?.(); document.removeEventListener("visibilitychange", seen); };
  let hiddenTimer = null;
  const seen = () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) hiddenTimer = setTimeout(() => { if (document.hidden) abort?.abort(); }, 60_000);
    else wake?.();
  };
  document.addEventListener("visibilitychange", seen);
  addEventListener("online", () => wake?.());

  const pause = (ms) => new Promise((resolve) => {
    const timer = ms === Infinity ? null : setTimeout(resolve, ms);
    wake = () => { clearTimeout(timer); resolve(); };
  });

  async function connection() {
    abort = new AbortController();
    const mine = abort;
    // The server sends a comment every 15 s: silence means that the connection is dead.
    let silence = setTimeout(() => mine.abort(), 40_000);
    try {
      const more = { Accept: "text/event-stream" };
      if (position !== null) more["Last-Event-ID"] = String(position);
      const response = await fetch(address(path, query), { headers: headers(more), signal: mine.signal, cache: "no-store" });
      if (response.status === 204) return "over";
      if (!response.ok) {
        const problem = new Problem(response.status, await response.json().catch(() => null));
        if (response.status === 401) loginNeeded.value = problem.message;
        if (response.status < 500 && response.status !== 429) { onState("refused", problem); return "over"; }
        throw problem;
      }
      online.value = true;
      failures = 0;
      onState("live");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        clearTimeout(silence);
        silence = setTimeout(() => mine.abort(), 40_000);
        rest += value;
        const end = rest.lastIndexOf("\n\n");
        if (end < 0) continue;
        const batch = [];
        for (const block of rest.slice(0, end).split("\n\n")) {
          let data = "";
          for (const line of block.split("\n")) {
            if (line.startsWith("data:")) data += (data ? "\n" : "") + line.slice(line[5] === " " ? 6 : 5);
            else if (line.startsWith("id:")) position = line.slice(3).trim();
          }
          if (data) batch.push(JSON.parse(data));
        }
        rest = rest.slice(end + 2);
        if (batch.length) onEvents(batch);
      }
      return "closed";
    } finally {
      clearTimeout(silence);
    }
  }

  (async () => {
    onState("connecting");
    while (!stopped) {
      let how;
      try {
        how = await connection();
      } catch (error) {
        if (stopped) break;
        how = "failed";
      }
      if (stopped) break;
      if (how === "over") { onState("over"); break; }
      if (document.hidden) { onState("paused"); await pause(Infinity); if (!stopped) onState("connecting"); continue; }
      failures += 1;
      if (how === "failed" || failures > 1) onState("lost");
      await pause(Math.min(8000, 250 * 2 ** Math.min(failures, 6)) * (0.7 + 0.6 * Math.random()));
    }
  })();
  return stop;
}
