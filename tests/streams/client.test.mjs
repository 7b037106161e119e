// The official client at a session of the fake agent: it reads the session live, and forks it.
import { DurableStream, stream } from "@durable-streams/client";
import { expect, test } from "vitest";

const root = process.env.STREAMS_URL;
const headers = { authorization: `Bearer ${process.env.STREAMS_TOKEN}` };

async function ask(method, path, body) {
  const answer = await fetch(`${root}${path}`, {
    method, headers: { ...headers, "content-type": "application/json" }, body: body && JSON.stringify(body),
  });
  const text = await answer.text();
  expect(answer.ok, `${method} ${path}: ${text}`).toBe(true);
  return text && JSON.parse(text.trim().split("\n").at(-1));
}

async function startSession() {
  const command = [process.env.AGENT_PROXY, "fake-agent"];
  const started = await ask("POST", "/v1/sessions", { agent: "acp", command, cwd: process.env.STREAMS_CWD });
  return started.sessionId ?? started.metadata.sessionId;
}

test.each(["long-poll", "sse"])("a session is read live by %s to its end", async (live) => {
  const id = await startSession();
  const events = [];
  const reading = await stream({ url: `${root}/v1/streams/${id}`, offset: "-1", live, json: true, headers });
  let wake = () => {};
  const stop = reading.subscribeJson((batch) => {
    events.push(...batch.items);
    wake();
  });
  const until = async (wanted) => {
    while (!events.some(wanted)) await new Promise((resolve) => { wake = resolve; });
  };
  await ask("POST", `/v1/sessions/${id}/prompt`, { text: "say hello" });
  await until((event) => event.type === "stream:text" && event.payload.text.includes("hello"));
  await until((event) => event.type === "stream:complete");
  await ask("POST", `/v1/sessions/${id}/kill`, {});
  await until((event) => event.type === "session:ended");
  await reading.closed;
  stop();
  expect(events.at(-1).type).toBe("session:ended");
  expect(reading.streamClosed).toBe(true);
  // Each once, in order, as the events' own route has them.
  expect(events.map((event) => event.offset)).toEqual(events.map((_, index) => String(index + 1).padStart(20, "0")));
  const page = await fetch(`${root}/v1/sessions/${id}/events`, { headers: { ...headers, accept: "application/x-ndjson" } });
  expect(events).toEqual((await page.text()).trim().split("\n").map((line) => JSON.parse(line)));
});

test("a session's stream is forked at an offset, and the fork goes its own way", async () => {
  const id = await startSession();
  await ask("POST", `/v1/sessions/${id}/prompt`, { text: "say hello", wait: false });
  const reading = await stream({ url: `${root}/v1/streams/${id}`, offset: "-1", live: "sse", json: true, headers });
  const begun = await new Promise((resolve) => {
    const seen = [];
    const stop = reading.subscribeJson((batch) => {
      seen.push(...batch.items);
      if (seen.some((event) => event.type === "stream:complete")) {
        stop();
        resolve(seen);
      }
    });
  });
  const at = begun[1].offset;
  const fork = await DurableStream.create({
    url: `${root}/v1/streams/forks/${id}`, contentType: "application/json",
    headers: { ...headers, "Stream-Forked-From": `/v1/streams/${id}`, "Stream-Fork-Offset": at },
  });
  const plain = new DurableStream({ url: fork.url, contentType: "application/json", headers });
  expect((await plain.head()).offset).toBe(at);
  await plain.append(JSON.stringify({ mine: 1 }));
  await plain.close();
  await ask("POST", `/v1/sessions/${id}/kill`, {});
  await ask("DELETE", `/v1/sessions/${id}`);
  const all = await (await stream({ url: fork.url, offset: "-1", live: false, headers })).json();
  expect(all).toEqual([...begun.slice(0, 2), { mine: 1 }]);
  expect((await plain.head()).streamClosed).toBe(true);
});

test("a session's stream takes no appends here, and gives its name to nobody", async () => {
  const id = await startSession();
  const url = `${root}/v1/streams/${id}`;
  for (const [method, status] of [["PUT", 409], ["POST", 405], ["DELETE", 405]]) {
    const answer = await fetch(url, { method, headers: { ...headers, "content-type": "application/json" }, body: method === "DELETE" ? undefined : "{}" });
    expect(answer.status, await answer.text()).toBe(status);
  }
  const reserved = await fetch(`${url}/events`, { method: "PUT", headers });
  expect(reserved.status).toBe(405);
  expect(await reserved.text()).toContain("reserved");
  await ask("POST", `/v1/sessions/${id}/kill`, {});
});
