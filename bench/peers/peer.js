// The peer: child_process.fork with process.send, measured from the host's side.
// A request a line on standard input, an answer a line on standard output; see src/contestant.rs.
'use strict';

const { fork, spawn } = require('node:child_process');
const { once } = require('node:events');
const { readFileSync } = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');

const CHILD = path.join(__dirname, 'child.js');

const now = () => Number(process.hrtime.bigint());
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

async function forked() {
  const child = fork(CHILD, { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
  const [message] = await once(child, 'message');
  if (message !== 'ready') throw new Error(`the child said ${message}`);
  return child;
}

async function ended(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, 'exit');
  child.kill('SIGKILL');
  await exit;
}

async function start({ count }) {
  const times = [];
  for (let i = 0; i < count; i += 1) {
    const begin = now();
    const child = await forked();
    times.push((now() - begin) / 1e6);
    await ended(child);
  }
  return { start_ms: median(times) };
}

function pssKib(pid) {
  const match = /^Pss:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'));
  if (!match) throw new Error(`/proc/${pid}/smaps_rollup has no Pss`);
  return Number(match[1]);
}

async function idle({ count, settle_ms }) {
  const children = await Promise.all(Array.from({ length: count }, forked));
  await sleep(settle_ms);
  const total = children.reduce((sum, child) => sum + pssKib(child.pid), 0);
  await Promise.all(children.map(ended));
  return { idle_pss_kib: total / count };
}

async function rtt({ count, warm_up }) {
  const child = await forked();
  const pings = (n) => new Promise((resolve) => {
    let left = n;
    child.removeAllListeners('message');
    child.on('message', () => {
      left -= 1;
      if (left > 0) child.send('ping');
      else resolve();
    });
    child.send('ping');
  });
  await pings(warm_up);
  const begin = now();
  await pings(count);
  const micros = (now() - begin) / 1e3 / count;
  await ended(child);
  return { rtt_us: micros };
}

// Calls `begin`, then takes texts from the events `name` of `source` until `count` came: each `length` long, each with
// the next number.
function counted({ source, name, textOf, count, length, begin }) {
  return new Promise((resolve, reject) => {
    let next = 0;
    source.removeAllListeners(name);
    source.on(name, (event) => {
      const text = textOf(event);
      if (text.length !== length || Number(text.slice(0, 10)) !== next) {
        reject(new Error(`text ${next} is lost: ${JSON.stringify(text)} came`));
      }
      next += 1;
      if (next === count) resolve();
    });
    begin();
  });
}

async function rate(count, warmUp, run) {
  await run(warmUp);
  const begin = now();
  await run(count);
  return count / ((now() - begin) / 1e9);
}

async function events({ count, warm_up, length }) {
  const child = await forked();
  const textOf = (message) => message.text;
  const run = (n) => counted({ source: child, name: 'message', textOf, count: n, length, begin: () => child.send(n) });
  const perSecond = await rate(count, warm_up, run);
  await ended(child);
  return { events_per_s_proxy: perSecond };
}

async function stdout({ count, warm_up, length, program }) {
  const child = spawn(program[0], program.slice(1), { stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = readline.createInterface({ input: child.stdout, crlfDelay: Infinity });
  // readline takes the newline off.
  const textOf = (line) => `${line}\n`;
  const run = (n) => counted({
    source: lines, name: 'line', textOf, count: n, length, begin: () => child.stdin.write(`${n}\n`),
  });
  const perSecond = await rate(count, warm_up, run);
  await ended(child);
  return { events_per_s_stdout: perSecond };
}

const measures = { start, idle, rtt, events, stdout };

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [[name, options]] = Object.entries(JSON.parse(line));
    let answer;
    try {
      answer = { figures: await measures[name](options) };
    } catch (error) {
      answer = { error: String(error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
})();
