// Structured garbage at the streams of a daemon for some minutes: fuzz.mjs MINUTES PID [SEED]. No answer may be an error of the server's,
// none may fail to come, and the daemon may neither die nor grow.
import { readFileSync, readdirSync } from "node:fs";
import net from "node:net";

const [minutes, pid, seed = String(Date.now())] = process.argv.slice(2);
const url = new URL(process.env.STREAMS_URL);
const WORKERS = 16;
const ANSWER_MS = 90_000;
// Answers of a server that is well: what it cannot do, and that it has too much to do.
const KNOWN = new Set([501, 503]);
const GROWTH = 96 * 1024 * 1024;

// Numbers that look random, and are the same for a seed.
let state = BigInt(seed) & 0xffffffffffffffffn;
function below(bound) {
  state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
  return Number((state >> 33n) % BigInt(bound));
}
const pick = (list) => list[below(list.length)];
const maybe = (one_in) => below(one_in) === 0;

const names = Array.from({ length: 24 }, (_, index) => `f/${index}`);
const paths = [...names, ...names, ...names, "", "events", "x/events", "x//y", "%2E%2E/a", "__ds/subscriptions/a", "a%00b", "%ff%fe", "é", "f/0/../1", "n".repeat(2000)];
const types = ["application/json", "application/json", "text/plain", "application/octet-stream", "TEXT/html; charset=x", "", "/", "a/b/c", ";", "application/json;x=\"", "\u00ff"];
const offsets = ["-1", "now", "0", "00000000000000000000", "00000000000000000003", "00000000000000000900", "99999999999999999999", "0000000000000000_0000000000000000", "-2", "%00", "1,2", ""];
const numbers = ["0", "1", "2", "3", "-1", "01", "1e3", "9007199254740991", "9007199254740992", "99999999999999999999999", " ", "x"];
const bodies = [
  () => "", () => "[]", () => "{}", () => "[1,2,3]", () => "[[1],[2]]", () => "\"text\"", () => "[1,", () => "{\"a\":", () => "nul", () => "\u0000", () => "[,]", () => "1 2",
  () => `{"type":"a:b","payload":{"n":${below(100)}}}`, () => "[".repeat(below(5000)), () => `${"[".repeat(200)}1${"]".repeat(200)}`, () => `["${"\\u0000\\\"]".repeat(below(50))}"]`,
  () => "x".repeat(below(70_000)), () => Buffer.from(Array.from({ length: below(300) }, () => below(256))), () => JSON.stringify(Array.from({ length: below(300) }, (_, n) => ({ n, of: "ü\n" }))),
];

function headers() {
  const list = [];
  const add = (name, value) => { if (maybe(3)) list.push(`${name}: ${value()}`); };
  add("content-type", () => pick(types));
  add("stream-closed", () => pick(["true", "TRUE", "false", "1", ""]));
  add("stream-ttl", () => pick([...numbers, "1", "60", "3600"]));
  if (maybe(3)) add("stream-expires-at", () => pick(["soon", "2000-01-01T00:00:00Z", "2100-01-01T00:00:00+02:00", "9999-12-31T23:59:59Z", "2100-13-01T00:00:00Z", "-"]));
  add("stream-seq", () => pick(numbers));
  if (maybe(2)) for (const name of ["producer-id", "producer-epoch", "producer-seq"]) if (!maybe(8)) list.push(`${name}: ${name === "producer-id" ? pick(["p", "q", "", "\u00e9"]) : pick(numbers)}`);
  if (maybe(3)) list.push(`stream-forked-from: ${pick([`/v1/streams/${pick(names)}`, pick(names), "/", "nothing", "%", "/v1/streams/"])}`);
  add("stream-fork-offset", () => pick(offsets));
  add("stream-fork-sub-offset", () => pick(numbers));
  add("if-none-match", () => pick(["*", "\"x\"", "W/", ",,,"]));
  add("origin", () => pick(["https://example.com", "null"]));
  return list;
}

function request() {
  const method = pick(["PUT", "PUT", "POST", "POST", "POST", "POST", "GET", "GET", "GET", "HEAD", "DELETE", "OPTIONS", "PATCH"]);
  const query = [];
  if (maybe(2)) query.push(`offset=${pick(offsets)}`);
  if (maybe(12)) query.push(`offset=${pick(offsets)}`);
  if (maybe(3)) query.push(`live=${pick(["sse", "long-poll", "x", ""])}`);
  if (maybe(4)) query.push(`cursor=${pick(numbers)}`);
  if (maybe(20)) query.push(pick(["%", "&&&", "=", "%zz=1"]));
  const body = method === "GET" || method === "HEAD" ? Buffer.alloc(0) : Buffer.from(pick(bodies)());
  const head = [
    `${method} /v1/streams/${encodeURI(pick(paths)).replaceAll("%25", "%")}${query.length ? `?${query.join("&")}` : ""} HTTP/1.1`, `host: ${url.host}`,
    `authorization: Bearer ${process.env.STREAMS_TOKEN}`, "connection: close", ...headers(),
  ];
  const chunked = maybe(4);
  const sent = chunked ? [`${body.length.toString(16)}\r\n`, body, "\r\n0\r\n\r\n"].slice(body.length ? 0 : 2) : [body];
  if (chunked && !body.length) sent[0] = "0\r\n\r\n";
  head.push(chunked ? "transfer-encoding: chunked" : `content-length: ${body.length}`);
  return { what: head[0], live: query.some((part) => part.startsWith("live=")), bytes: Buffer.concat([Buffer.from(`${head.join("\r\n")}\r\n\r\n`, "latin1"), ...sent.map((part) => Buffer.from(part))]) };
}

// Sends a request. A reader that waits leaves after a moment; some requests are cut off.
function send({ what, live, bytes }) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(Number(url.port), url.hostname);
    const late = setTimeout(() => { socket.destroy(); reject(new Error(`${what}: no answer`)); }, ANSWER_MS);
    const leave = live ? setTimeout(() => socket.destroy(), below(300)) : undefined;
    let head = "";
    socket.on("data", (data) => { if (head.length < 200) head += data.toString("latin1"); });
    socket.on("error", () => {});
    socket.on("close", () => {
      clearTimeout(late);
      clearTimeout(leave);
      resolve(Number(head.slice(9, 12)) || 0);
    });
    const cut = maybe(40) ? below(bytes.length) : bytes.length;
    socket.write(bytes.subarray(0, cut), () => { if (cut < bytes.length) socket.destroy(); });
  });
}

const memory = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))[1]) * 1024;
const descriptors = () => readdirSync(`/proc/${pid}/fd`).length;

const statuses = new Map();
const begin = Date.now();
const end = begin + Number(minutes) * 60_000;
let warm;
async function work() {
  while (Date.now() < end) {
    const asked = request();
    const status = await send(asked);
    statuses.set(status, (statuses.get(status) ?? 0) + 1);
    if (status >= 500 && !KNOWN.has(status)) throw new Error(`${asked.what}: ${status}`);
    if (!warm && Date.now() > begin + (end - begin) / 4) warm = { memory: memory(), descriptors: descriptors() };
  }
}
await Promise.all(Array.from({ length: WORKERS }, work));
const sum = [...statuses].sort().map(([status, count]) => `${status || "cut off"}: ${count}`).join(", ");
const mib = (bytes) => (bytes / 1024 / 1024).toFixed(0);
console.log(`fuzz: seed ${seed}, ${mib(warm.memory)} MiB after a quarter, ${mib(memory())} at the end, ${warm.descriptors} and ${descriptors()} descriptors; ${sum}`);
if (!statuses.has(201) || !statuses.has(204)) throw new Error("nothing was ever created or appended");
if (memory() > warm.memory + GROWTH) throw new Error("the daemon grows");
if (descriptors() > warm.descriptors + 4 * WORKERS) throw new Error("the daemon holds more and more descriptors");
