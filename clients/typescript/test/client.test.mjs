// The client at a daemon.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { Client, ConflictError, NotFoundError, ProblemError, TransportError, UnauthorizedError } from "agent-proxy-client";
import { fetchOfSocket } from "agent-proxy-client/node";
import { startCutter, startDaemon } from "./daemon.mjs";

/** @typedef {import("agent-proxy-client").Event} Event */

const daemon = await startDaemon();
const client = new Client({ url: daemon.url, token: daemon.token });
const socketClient = new Client({ url: "http://daemon", fetch: fetchOfSocket(daemon.socket) });
const file = (/** @type {string} */ name) => readFileSync(new URL(name, import.meta.url), "utf8");
const fake = () => client.start({ agent: "acp", command: ["my-agent"], cwd: daemon.cwd });

before(() => assert.equal(daemon.token.length > 20, true));
after(() => daemon.close());

/** Waits for an event. */
async function until(/** @type {import("agent-proxy-client").Session} */ session, /** @type {string} */ type, fits = (/** @type {Event} */ _event) => true) {
  for await (const event of session.events({ type })) if (fits(event)) return event;
  throw new Error(`no ${type} to the end of the session`);
}

async function all(/** @type {AsyncIterable<Event>} */ events) {
  const list = [];
  for await (const event of events) list.push(event);
  return list;
}

test("the examples of the README", async () => {
  const readme = file("../README.md");
  const [first, second] = [...readme.matchAll(/```js\n([^]*?)```/g)].map(([, code]) => code);
  assert.equal(first, file("../examples/session.mjs").split("\n").slice(1).join("\n"));
  const run = async (/** @type {string} */ code) => {
    const options = { env: { ...daemon.env() }, cwd: new URL("..", import.meta.url), timeout: 60_000 };
    const { stdout, stderr } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", code], options);
    assert.equal(stderr, "");
    return stdout;
  };
  assert.ok(readme.includes(`\`\`\`text\n${await run(first ?? "")}\`\`\``));
  assert.match(await run(second ?? ""), /^\d+\.\d+\.\d+\n$/);
});

for (const [name, one] of /** @type {const} */ ([["TCP", client], ["a Unix socket", socketClient]])) {
  test(`a turn by ${name}`, async () => {
    const session = await one.start({ agent: "acp", command: ["my-agent"], cwd: daemon.cwd });
    assert.equal((await session.ask("say hello\nsay a\u2028b\u0085ä")).reply, "hello\na\u2028b\u0085ä\n");
    const turn = await session.prompt("wait");
    await assert.rejects(session.prompt("say more"), (error) => error instanceof ConflictError && error.type === "busy");
    // Agents that speak ACP take nothing into a running turn.
    await assert.rejects(session.steer("say steered"), (error) => error instanceof ProblemError && error.type === "unsupported");
    assert.equal(await session.abort(), null);
    const ended = await until(session, "stream:complete", (event) => event.metadata?.turn === turn);
    assert.equal(ended.payload.stopReason, "cancelled");
    const { events } = await session.page({ type: "stream:text" });
    assert.ok(events.some((event) => event.payload.text === "a\u2028b\u0085ä\n"));
    const receipt = await session.kill({ graceMs: 0 });
    assert.deepEqual(receipt.survivors, []);
    await session.delete();
  });
}

for (const [name, one, send] of /** @type {const} */ ([["TCP", client, fetch], ["a Unix socket", socketClient, fetchOfSocket(daemon.socket)]])) {
  // Node's own fetch gives up an answer whose headers do not come for 300 s.
  test(`the answer to an ask begins before the end of the turn, by ${name}`, async () => {
    const session = await fake();
    /** @type {(response: Response | null) => void} */
    let begin = () => {};
    const beginning = new Promise((resolve) => { begin = resolve; });
    const noting = new Client({ url: daemon.url, token: daemon.token, fetch: async (...call) => {
      const response = await send(...call);
      begin(response);
      return response;
    } });
    const answer = noting.session(session.id).ask("say before\nask May I?\nsay after");
    const asked = (await until(session, "permission:requested")).payload;
    const late = setTimeout(() => begin(null), 5000);
    const response = await beginning;
    clearTimeout(late);
    await session.answer(asked.id, { option: "allow-once" });
    const { reply, turn, stopReason } = await answer;
    assert.match(reply, /^before\n[^]*after\n$/);
    assert.deepEqual([turn, stopReason], [1, "endTurn"]);
    assert.equal(response?.status, 200, "the headers come at once");
    await session.kill();
    await session.delete();
  });

  test(`an ask that fails, by ${name}`, async () => {
    const [slow, given, killed, crashing] = await Promise.all([fake(), fake(), fake(), fake()]);
    const ask = (/** @type {import("agent-proxy-client").Session} */ { id }, text = "wait", options = {}) => one.session(id).ask(text, options);
    const late = assert.rejects(ask(slow, "wait", { timeoutMs: 3000 }), (error) =>
      error instanceof TransportError && error.cause instanceof Error);
    await until(slow, "turn:started");
    await late;
    await assert.rejects(ask(slow), (error) => error instanceof ConflictError && error.type === "busy");

    const reading = new AbortController();
    const rejected = assert.rejects(ask(given, "wait", { signal: reading.signal }), { name: "AbortError" });
    await until(given, "turn:started");
    reading.abort();
    await rejected;

    const ended = assert.rejects(ask(killed), (error) => error instanceof ProblemError && error.status === 502);
    await until(killed, "turn:started");
    await killed.kill();
    await ended;
    await assert.rejects(ask(killed), (error) => error instanceof ConflictError && error.type === "ended");
    await assert.rejects(ask(crashing, "crash"), (error) => error instanceof ProblemError && error.type === "agent-died");
    await assert.rejects(one.session("s-99").ask("say hello"), (error) => error instanceof NotFoundError && error.type === "unknown-session");
    for (const session of [slow, given, crashing]) await session.kill();
    for (const session of [slow, given, killed, crashing]) await session.delete();
  });
}

test("an answer in pieces, and one that breaks off", async () => {
  const pieces = [": heartbeat\n", ": heart", 'beat\ndata: {"reply":"ä"', "}\n", "\n"];
  const ask = (/** @type {string[]} */ sent) => {
    const body = new ReadableStream({ start(stream) { sent.forEach((piece) => stream.enqueue(new TextEncoder().encode(piece))); stream.close(); } });
    return new Client({ url: daemon.url, fetch: async () => new Response(body, { headers: { "Content-Type": "text/event-stream" } }) }).session("s-1").ask("hi");
  };
  assert.deepEqual(await ask(pieces), { reply: "ä" });
  await assert.rejects(ask(pieces.slice(0, 4)), TransportError);
  const problem = JSON.stringify({ type: "busy", title: "Busy", status: 409, detail: "a turn runs" });
  await assert.rejects(ask([": heartbeat\n", `event: problem\ndata: ${problem}\n\n`]), ConflictError);
});

test("processes", async () => {
  const session = await fake();
  await session.ask("setsid exec sleep 500\nspawn exec sleep 600");
  const processes = await session.processes();
  const find = (/** @type {string} */ line) => {
    const found = processes.find(({ command, args }) => [command, ...args].join(" ") === line);
    assert.ok(found);
    return found.id;
  };
  const [first, second] = [find("sleep 500"), find("sleep 600")];
  await session.signal(first.pid, "SIGTERM", first.startTime);
  const exited = await until(session, "process:exited", (event) => event.payload.process.pid === first.pid);
  assert.deepEqual(exited.payload.exit, { signal: 15 });
  const receipt = await session.killProcess(second.pid, { tree: true, graceMs: 0 });
  assert.deepEqual([receipt.survivors, receipt.processes.map(({ id }) => id)], [[], [second]]);
  await session.kill();
  await session.delete();
});

test("permissions", async () => {
  const session = await fake();
  await session.prompt("ask May I?");
  const asked = (await until(session, "permission:requested")).payload;
  assert.deepEqual((await session.permissions()).map(({ id }) => id), [asked.id]);
  assert.deepEqual((await client.permissions()).map(({ sessionId, title }) => [sessionId, title]), [[session.id, "May I?"]]);
  await session.answer(asked.id, { option: "reject-once" }, "ada");
  const resolved = (await until(session, "permission:resolved")).payload;
  assert.deepEqual([resolved.option, resolved.by], ["reject-once", { user: { name: "ada" } }]);
  await until(session, "stream:complete");
  await assert.rejects(session.answer("permission-9", "allow"), NotFoundError);
  await session.kill();
  await session.delete();
});

test("pages of sessions", async () => {
  const ids = [0, 1, 2, 3, 4].map((number) => `page-${number}`);
  for (const sessionId of ids) await client.start({ sessionId, agent: "command", command: ["cat"], cwd: daemon.cwd });
  const listed = [];
  for await (const info of client.sessions({ agent: "command", sort: "id", pageSize: 2 })) listed.push(info.sessionId);
  assert.deepEqual(listed, ids);
  for (const id of ids) {
    assert.equal((await client.session(id).kill()).proof, "noChildren");
    assert.deepEqual((await client.session(id).receipts()).map(({ type }) => type), ["session:ended"]);
    await client.session(id).delete();
  }
  await assert.rejects(client.session("page-0").info(), (error) =>
    error instanceof NotFoundError && error.type === "unknown-session" && error.detail.startsWith("no session page-0"));
});

test("a start that is sent again", async () => {
  const config = { agent: "command", command: ["cat"], cwd: daemon.cwd };
  const first = await client.start(config, { idempotencyKey: "start-ts" });
  assert.equal((await client.start(config, { idempotencyKey: "start-ts" })).id, first.id);
  await first.kill();
  await first.delete();
});

test("events over cut connections", async () => {
  const session = await fake();
  await session.ask("flood 300 50");
  const cutter = await startCutter(daemon.port, 5000);
  const events = new Client({ url: cutter.url, token: daemon.token }).session(session.id).events({ raw: false });
  const followed = [(await events.next()).value];
  await session.kill();
  followed.push(...await all(events));
  cutter.close();
  assert.ok(cutter.connections > 10);
  const paged = [];
  for (let page, after = "0"; page?.more !== false; after = page.next) {
    page = await session.page({ after, limit: 100, raw: false });
    paged.push(...page.events);
  }
  assert.deepEqual(followed, paged);
  const last = paged.at(-1);
  assert.equal(last?.type, "session:ended");
  assert.deepEqual(await all(session.events({ after: last?.offset ?? "" })), []);
  await session.delete();
});

for (const cut of [false, true]) {
  test(`events of some types of a session that is deleted, ${cut ? "behind a broken connection" : "after their end"}`, async () => {
    const session = await fake();
    await session.ask("flood 100 50");
    const cutter = await startCutter(daemon.port, 2000);
    let connections = 0, killed = Promise.resolve({});
    const late = new Client({ url: cut ? cutter.url : daemon.url, token: daemon.token, fetch: async (...call) => {
      if (++connections === 2) {
        if (cut) killed = session.kill();
        await killed;
        await session.delete();
      }
      return fetch(...call);
    } });
    const events = late.session(session.id).events({ type: ["session:started", "stream:text"] });
    assert.equal((await events.next()).value?.type, "session:started");
    if (!cut) killed = session.kill();
    if (cut) await assert.rejects(all(events), NotFoundError);
    else assert.deepEqual(new Set((await all(events)).map(({ type }) => type)), new Set(["stream:text"]));
    assert.equal(connections, 2);
    cutter.close();
  });
}

test("a stream over restarts", async () => {
  const stream = client.stream("notes");
  const events = stream.events({ type: "note:*" });
  const first = events.next();
  const received = [];
  for (let number = 0; number < 6; number += 1) {
    if (number === 2 || number === 4) {
      await daemon.stop();
      await daemon.start();
    }
    await stream.append("note:taken", { number }, { by: "ada" });
  }
  received.push((await first).value);
  while (received.length < 6) received.push((await events.next()).value);
  await events.return();
  assert.deepEqual(received.map((event) => event?.payload.number), [0, 1, 2, 3, 4, 5]);
});

test("events of all sessions", async () => {
  const events = client.events({ type: "mark:*" });
  await client.stream("others").append("mark:first");
  const first = (await events.next()).value;
  await client.stream("more").append("mark:second");
  assert.deepEqual([first?.eventStreamId, (await events.next()).value?.eventStreamId], ["others", "more"]);
  await events.return();
});

for (const existing of [0, 3]) {
  test(`what is to come, of a stream with ${existing} events`, async () => {
    const stream = client.stream(`ticks-${existing}`);
    for (let event = 0; event < existing; event += 1) await stream.append("tick:old");
    let ended = false;
    const ticker = (async () => { while (!ended) await stream.append("tick:new"); })();
    const received = [];
    for await (const event of stream.events({ after: "latest" })) if (received.push(event) === 20) break;
    ended = true;
    await ticker;
    assert.deepEqual([...new Set(received.map(({ type }) => type))], ["tick:new"]);
    const first = Number(received[0]?.offset);
    assert.deepEqual(received.map(({ offset }) => Number(offset)), received.map((_, index) => first + index));
  });
}

test("a reader that is ended", async () => {
  const session = await fake();
  const reading = new AbortController();
  await assert.rejects(async () => {
    for await (const event of session.events({ signal: reading.signal })) if (event.type === "session:started") reading.abort();
  }, { name: "AbortError" });
  await session.kill();
  await session.delete();
});

test("errors", async () => {
  const wrong = new Client({ url: daemon.url, token: "wrong" });
  await assert.rejects(wrong.session("s-1").info(), (error) => error instanceof UnauthorizedError && error.type === "unauthorized");
  await assert.rejects(wrong.session("s-1").events().next(), UnauthorizedError);
  await assert.rejects(client.session("s-99").events().next(), NotFoundError);
  await assert.rejects(client.start({ agent: "no-such-agent" }), (error) => error instanceof ProblemError && error.type === "unknown-agent");
  const nobody = new Client({ url: "http://127.0.0.1:1", reconnectMs: 200 });
  await assert.rejects(nobody.session("s-1").info(), TransportError);
  await assert.rejects(nobody.session("s-1").events().next(), TransportError);
});
