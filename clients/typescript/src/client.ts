import { AgentProxyError, problemError, ProblemError, TransportError } from "./errors.js";
import type {
  AbortPolicy, AgentSessionConfig, Answer, Envelope, EventPage, OpenPermission, PermissionAnswer, ProcessDetails, PromptMode, PromptPart, Receipt,
  RecordedReceipt, SessionInfo, SessionOrder, SessionPermission, SessionStatus,
} from "./schemas.js";
import { ServerSentEvents } from "./sse.js";

/** Milliseconds between attempts to connect again: the first, and the most. */
const FIRST_PAUSE = 100, LONGEST_PAUSE = 3000;

/** Milliseconds without a byte after which a connection of events is taken for dead. The server sends a comment every 15 s. */
const SILENCE = 45_000;

/** Statuses after which a reader of events tries again. */
const RETRIED = new Set([429, 502, 503, 504]);

/** Longest wait for the answer to an `ask`, in milliseconds, by default. */
const ASK = 3_600_000;

/** Longest time of a timer, in milliseconds: a longer one fires at once. */
const LONGEST_TIMER = 2 ** 31 - 1;

/** Address of a server. */
export interface ClientOptions {
  /** Address, as `serve --listen` has it: `http://127.0.0.1:8480`. */
  url: string;
  /** Token for the server. */
  token?: string;
  /** Longest wait for an answer in milliseconds, 90 s by default; the server's own is 60 s. */
  timeoutMs?: number;
  /** Time in milliseconds for which a reader of events that lost its connection tries again; 60 s by default. */
  reconnectMs?: number;
  /** Sends the requests; the `fetch` of the platform by default. */
  fetch?: typeof fetch;
}

/** Settings of one request. */
export interface RequestOptions {
  /** Longest wait for the answer, in milliseconds. */
  timeoutMs?: number;
  /** Gives up the request. What it has begun goes on. */
  signal?: AbortSignal;
}

/** An event of a stream. */
export type Event = Omit<Envelope, "payload"> & {
  /** Content, by type. */
  payload: any;
};

/** Selection of events. */
export interface EventOptions {
  /** Offset after which events are read, or `latest` for those to come; 0 by default. */
  after?: number | string;
  /** Types or groups: `stream:*`, `permission:requested`. */
  type?: string | string[];
  /** False to leave out the lines of the agent's own protocol. */
  raw?: boolean;
  /** Ends the reading. */
  signal?: AbortSignal;
}

/** Settings of a prompt. */
export interface PromptOptions extends RequestOptions {
  /** What happens while a turn runs: `refuse` (by default), `queue` or `steer`. */
  mode?: PromptMode;
  /** Pictures and files. */
  parts?: PromptPart[];
  /** Name of who sends it. */
  by?: string;
  /** Comes back with the prompt's events. */
  metadata?: Record<string, unknown>;
}

type Query = Record<string, string | number | boolean | string[] | undefined>;

interface Call extends RequestOptions {
  body?: unknown;
  query?: Query;
  headers?: Record<string, string>;
}

interface SessionPage { sessions: SessionInfo[]; link: string }

/** Reads a body of JSON, or none. */
async function jsonBody<T>(response: Response): Promise<T> {
  const text = await response.text();
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** Connection to one agent-proxy server. */
export class Client {
  readonly #options: ClientOptions;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    this.#options = options;
    // A browser's own wants to be called without an object.
    this.#fetch = options.fetch ?? ((...call) => fetch(...call));
  }

  /** Starts a session, and waits until its agent is ready. With an `idempotencyKey` it can be sent again. */
  async start(config: AgentSessionConfig, { idempotencyKey, ...options }: RequestOptions & { idempotencyKey?: string } = {}): Promise<Session> {
    const headers = idempotencyKey === undefined ? {} : { "Idempotency-Key": idempotencyKey };
    const info = await this.request<SessionInfo>("POST", "/v1/sessions", { body: config, headers, ...options });
    return this.session(info.sessionId);
  }

  /** Returns the session with this id, without a request. */
  session(id: string): Session {
    return new Session(this, id);
  }

  /** Returns the stream with this id, which need not have a session or any event yet, without a request. */
  stream(id: string): Stream {
    return new Stream(this, id);
  }

  /** Lists the sessions, and asks for a page at a time. */
  async *sessions({ pageSize = 100, ...filter }: {
    status?: SessionStatus | SessionStatus[]; agent?: string; userId?: string; workspaceId?: string; text?: string; archived?: boolean;
    sort?: SessionOrder; pageSize?: number;
  } = {}): AsyncGenerator<SessionInfo, void> {
    let query: Query | undefined = { ...filter, limit: pageSize };
    while (query) {
      const page: SessionPage = await this.#send("GET", "/v1/sessions", { query }, async (response) =>
        ({ sessions: await jsonBody(response), link: response.headers.get("link") ?? "" }));
      yield* page.sessions;
      const next = /<\?([^>]*)>;\s*rel="next"/.exec(page.link)?.[1];
      query = next === undefined ? undefined : Object.fromEntries(new URLSearchParams(next));
    }
  }

  /** Lists the open permission requests of all sessions. */
  permissions(): Promise<SessionPermission[]> {
    return this.request("GET", "/v1/permissions");
  }

  /** Follows the events of all sessions, after a position or from `latest` on. Needs a server with a state directory. */
  events(options: EventOptions = {}): AsyncGenerator<Event, void> {
    return this.follow("/v1/events", options);
  }

  /** Sends any request of the API. Returns the JSON of the answer; `undefined` for an answer without a body. */
  request<T>(method: string, path: string, call: Call = {}): Promise<T> {
    return this.#send(method, path, call, jsonBody<T>);
  }

  /**
   * Sends a request whose answer takes long. It begins at once, and has signs of life to its end: the `fetch` of Node gives up one whose
   * headers, or next byte, do not come for 300 s.
   */
  requestSlow<T>(method: string, path: string, { headers = {}, ...call }: Call = {}): Promise<T> {
    return this.#send(method, path, { ...call, headers: { Accept: "text/event-stream", ...headers } }, async (response) => {
      // A server of an earlier version.
      if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return await jsonBody<T>(response);
      const parser = new ServerSentEvents();
      const reader = (response.body as ReadableStream<Uint8Array>).getReader();
      try {
        for (;;) {
          const { done, value } = await reader.read();
          if (done) throw new Error("the stream ended without the answer");
          for (const { name, data } of parser.feed(value)) {
            if (name === "problem") throw problemError(500, data);
            return JSON.parse(data) as T;
          }
        }
      } finally {
        // It fails for a connection that is broken.
        reader.cancel().catch(() => {});
      }
    });
  }

  /** Sends a request, and has the body of its answer read within the same time. */
  async #send<T>(
    method: string, path: string, { body, query = {}, headers = {}, timeoutMs, signal }: Call, read: (response: Response) => Promise<T>,
  ): Promise<T> {
    // Not `AbortSignal.timeout`: Node may collect one that only `AbortSignal.any` knows, and it never fires.
    const limit = new AbortController();
    const init: RequestInit = {
      method, headers: this.#headers({ Accept: "application/json", ...headers }),
      signal: signal ? AbortSignal.any([signal, limit.signal]) : limit.signal,
    };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
      (init.headers as Headers).set("Content-Type", "application/json");
    }
    const time = Math.min(timeoutMs ?? this.#options.timeoutMs ?? 90_000, LONGEST_TIMER);
    const timer = setTimeout(() => limit.abort(new DOMException("The time for the answer is over", "TimeoutError")), time);
    let response;
    try {
      response = await this.#fetch(this.#url(path, query), init);
      if (!response.ok) throw problemError(response.status, await response.text());
      return await read(response);
    } catch (cause) {
      if (cause instanceof AgentProxyError) throw cause;
      signal?.throwIfAborted();
      const brokeOff = response && !limit.signal.aborted;
      throw new TransportError(`${method} ${path}: ${brokeOff ? "the answer broke off" : "no answer"}`, { cause });
    } finally {
      clearTimeout(timer);
    }
  }

  #headers(more: Record<string, string>): Headers {
    const { token } = this.#options;
    return new Headers(token === undefined ? more : { Authorization: `Bearer ${token}`, ...more });
  }

  #url(path: string, query: Query): string {
    const url = new URL(this.#options.url);
    // The server may be below a path of its own.
    url.pathname = url.pathname.replace(/\/$/, "") + path;
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    return url.href;
  }

  /** Reads server-sent events to the end of the session. A broken connection goes on behind the last event that was whole. */
  async *follow(path: string, { after = 0, type, raw, signal }: EventOptions): AsyncGenerator<Event, void> {
    const selection: Query = { ...(type !== undefined && { type }), ...(raw !== undefined && { raw }) };
    let last = String(after);
    if (last === "latest") {
      // A number from here on: an event may come while there is no connection.
      last = (await this.request<EventPage>("GET", path, { query: { from: last, limit: 1 }, ...(signal && { signal }) })).next;
    }
    let lastType = "", isComplete = false, pause = FIRST_PAUSE, giveUpAt = Infinity;
    for (;;) {
      const connection = new AbortController();
      const reason = signal ? AbortSignal.any([signal, connection.signal]) : connection.signal;
      let silence = setTimeout(() => connection.abort(), 10_000);
      let failure: unknown;
      try {
        const response = await this.#fetch(this.#url(path, { ...selection, from: last }), {
          headers: this.#headers({ Accept: "text/event-stream" }), signal: reason,
        });
        if (response.status === 204) return;
        if (!response.ok) throw problemError(response.status, await response.text());
        giveUpAt = Infinity;
        isComplete = false;
        const parser = new ServerSentEvents();
        const reader = (response.body as ReadableStream<Uint8Array>).getReader();
        for (;;) {
          clearTimeout(silence);
          silence = setTimeout(() => connection.abort(), SILENCE);
          const { done, value } = await reader.read();
          clearTimeout(silence);
          if (done) break;
          for (const { id, name, data } of parser.feed(value)) {
            if (name === "problem") throw problemError(500, data);
            pause = FIRST_PAUSE;
            last = id || last;
            if (data === "") continue;
            const event = JSON.parse(data) as Event;
            lastType = event.type;
            yield event;
          }
        }
        // No further connection: the server may have ended with its sessions.
        if (lastType === "session:ended") return;
        isComplete = true;
      } catch (error) {
        signal?.throwIfAborted();
        // Ended, unseen by a reader of some types, and deleted before this connection.
        if (isComplete && error instanceof ProblemError && error.type === "unknown-session") return;
        if (error instanceof ProblemError && !RETRIED.has(error.status)) throw error;
        failure = error;
      } finally {
        clearTimeout(silence);
        connection.abort();
      }
      if (failure !== undefined) {
        giveUpAt = Math.min(giveUpAt, Date.now() + (this.#options.reconnectMs ?? 60_000));
        if (Date.now() + pause > giveUpAt) {
          throw failure instanceof ProblemError ? failure : new TransportError(`GET ${path}: the connection is lost`, { cause: failure });
        }
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
      signal?.throwIfAborted();
      pause = Math.min(2 * pause, LONGEST_PAUSE);
    }
  }
}

/** Stream of events. */
export class Stream {
  protected readonly path: string;

  constructor(protected readonly client: Client, readonly id: string, base = "/v1/streams/") {
    this.path = base + encodeURIComponent(id);
  }

  /** Appends an event. Returns its offset. */
  async append(type: string, payload: unknown = null, metadata?: Record<string, unknown>): Promise<string> {
    return (await this.client.request<{ offset: string }>("POST", `${this.path}/events`, { body: { type, payload, metadata } })).offset;
  }

  /**
   * Follows the events, to the end of the session; those of a stream without one for good. Each event comes once, in order, over lost
   * connections and restarts of the server. Where the server has lost some, a `session:gap` stands for them.
   */
  events(options: EventOptions = {}): AsyncGenerator<Event, void> {
    return this.client.follow(`${this.path}/events`, options);
  }

  /** Reads the events that exist: `limit` of them at most. `next` is the `after` of the next page. */
  page({ after = 0, limit, type, raw, signal }: EventOptions & { limit?: number } = {}): Promise<Omit<EventPage, "events"> & { events: Event[] }> {
    const query = Object.entries({ from: after, limit, type, raw }).filter(([, value]) => value !== undefined);
    return this.client.request("GET", `${this.path}/events`, { query: Object.fromEntries(query), ...(signal && { signal }) });
  }
}

/** Session of an agent. */
export class Session extends Stream {
  constructor(client: Client, id: string) {
    super(client, id, "/v1/sessions/");
  }

  #post<T>(path: string, body: unknown, options: Call = {}): Promise<T> {
    return this.client.request("POST", `${this.path}/${path}`, { body, ...options });
  }

  /** Describes the session. */
  info(): Promise<SessionInfo> {
    return this.client.request("GET", this.path);
  }

  /**
   * Sends a prompt. Returns the number of its turn; `null` where the agent has no turns. While a turn runs, `refuse` throws a
   * `ConflictError`, `queue` lets it wait, and `steer` sends it into that turn.
   */
  async prompt(text: string, { idempotencyKey, timeoutMs, signal, ...prompt }: PromptOptions & { idempotencyKey?: string } = {}): Promise<number | null> {
    const headers = idempotencyKey === undefined ? {} : { "Idempotency-Key": idempotencyKey };
    const call = { headers, ...(timeoutMs !== undefined && { timeoutMs }), ...(signal && { signal }) };
    return (await this.#post<{ turn: number | null }>("prompt", { text, ...prompt }, call)).turn;
  }

  /** Sends a prompt, and waits for the end of its turn, an hour by default. The turn goes on if that is not in time. */
  ask(text: string, { timeoutMs = ASK, signal, ...prompt }: PromptOptions = {}): Promise<Answer> {
    return this.client.requestSlow("POST", `${this.path}/ask`, { body: { text, ...prompt }, timeoutMs, ...(signal && { signal }) });
  }

  /** Sends a text into the running turn. */
  steer(text: string, parts: PromptPart[] = []): Promise<void> {
    return this.#post("steer", { text, parts });
  }

  /** Cancels the turn. With `killTurnProcesses` also ends what the turn has started, and returns the receipt. */
  async abort(policy: AbortPolicy = "leaveProcesses"): Promise<Receipt | null> {
    return (await this.#post<Receipt | undefined>("abort", { policy })) ?? null;
  }

  /** Lists the open permission requests. */
  permissions(): Promise<OpenPermission[]> {
    return this.client.request("GET", `${this.path}/permissions`);
  }

  /** Answers a permission request: `allow`, `deny`, `{ option: "ID" }`, … */
  answer(request: string, answer: PermissionAnswer, by?: string): Promise<void> {
    return this.#post(`permissions/${encodeURIComponent(request)}`, { answer, by });
  }

  /** Lists the processes, those that are gone too. */
  processes(): Promise<ProcessDetails[]> {
    return this.client.request("GET", `${this.path}/processes`);
  }

  /** Sends a signal to one process; with `startTime` only to the process that began then. */
  async signal(pid: number, signal: string | number, startTime?: number): Promise<void> {
    await this.#post(`processes/${pid}/signal`, { signal, startTime });
  }

  /** Ends one process; with `tree` everything below it too. */
  killProcess(pid: number, { tree = false, graceMs }: { tree?: boolean; graceMs?: number } = {}): Promise<Receipt> {
    return this.client.request("DELETE", `${this.path}/processes/${pid}`, { query: { tree, ...(graceMs !== undefined && { graceMs }) } });
  }

  /**
   * Ends the session, and returns the receipt. Throws a `ProblemError` (`survivors`) if something outlived the kill. `keepAgent` ends what the
   * agent has started alone.
   */
  kill({ graceMs, keepAgent = false }: { graceMs?: number; keepAgent?: boolean } = {}): Promise<Receipt> {
    return this.#post("kill", { graceMs, keepAgent });
  }

  /** Lists the receipts of its end and its suspensions, the last one first. */
  receipts(limit?: number): Promise<RecordedReceipt[]> {
    return this.client.request("GET", `${this.path}/receipts`, { query: limit === undefined ? {} : { limit } });
  }

  /** Forgets an ended or suspended session; with `force` with changes of its workspace that are not applied. */
  async delete({ force = false }: { force?: boolean } = {}): Promise<void> {
    await this.client.request("DELETE", this.path, { query: { force } });
  }
}
