// Structured garbage: JSON-RPC messages that are nearly right, and lines that are not. All of it follows from a seed.

export class Random {
  constructor(seed) { this.state = seed >>> 0; }

  // Mulberry32.
  next() {
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(this.state ^ (this.state >>> 15), this.state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  }

  below(count) { return Math.floor(this.next() * count); }
  chance(part) { return this.next() < part; }
  pick(values) { return values[this.below(values.length)]; }
}

const deep = (depth, open, close) => open.repeat(depth) + close.repeat(depth);

// Values of the wrong kind, as JSON text: some cannot be told by a value.
const WRONG = [
  "null", "true", "-1", "0", "1.5", "1e308", "-1e400", "18446744073709551616", '""', "[]", "{}", "[null]", '{"":null}',
  '"\\u0000"', '"\\ud800"', '"../../../etc/passwd"', '"a\\nb"', '"%00%2f"', '"session/new"', deep(120, "[", "]"), deep(120, '{"a":', "1}").replace('1}', "1}"),
  '"😀\\u202e"', "[1,2,3]", '{"type":"text","text":null}', '{"__proto__":{"a":1}}',
];

// Encodes a value; somewhere in it something is wrong. `odds` is of each node.
export function corrupt(random, value, odds) {
  if (random.chance(odds)) {
    const kind = random.below(40);
    if (kind === 0) return JSON.stringify("x".repeat(1 << random.below(20)));
    if (kind === 1) return deep(1 << random.below(14), "[", "]");
    if (kind === 2) return `[${"0,".repeat(1 << random.below(14))}0]`;
    return random.pick(WRONG);
  }
  if (Array.isArray(value)) {
    const items = value.map((item) => corrupt(random, item, odds));
    if (random.chance(odds)) items.push(random.pick(WRONG));
    return `[${items.join(",")}]`;
  }
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = [];
  for (const [name, member] of Object.entries(value)) {
    if (random.chance(odds)) continue;
    const called = random.chance(odds / 2) ? `${name}${random.pick(["", "s", "\u0000", "_id"])}` : name;
    const text = `${JSON.stringify(called)}:${corrupt(random, member, odds)}`;
    members.push(text);
    // One name, two values.
    if (random.chance(odds / 2)) members.push(`${JSON.stringify(called)}:${random.pick(WRONG)}`);
  }
  if (random.chance(odds)) members.push(`${JSON.stringify(random.pick(["extra", "jsonrpc", "id", "method", "params", "result", "error", "_meta"]))}:${random.pick(WRONG)}`);
  return `{${members.join(",")}}`;
}

// A message as bytes: whole, or a half line, two in one line, a batch, broken UTF-8.
export function mangle(random, text) {
  switch (random.below(24)) {
    case 0: return Buffer.from(`${text.slice(0, random.below(text.length + 1))}\n`);
    case 1: return Buffer.from(`${text}${text}\n`);
    case 2: return Buffer.from(`[${text},${text}]\n`);
    case 3: {
      const bytes = Buffer.from(`${text}\n`);
      for (let count = 0; count < 4; count++) bytes[random.below(bytes.length - 1)] = random.below(256);
      return bytes;
    }
    case 4: return Buffer.from(`\n\r\n  \ufeff${text}\r\n`);
    case 5: return Buffer.concat([Buffer.from([0xff, 0xfe, 0x00]), Buffer.from(`${text}\n`)]);
    default: return Buffer.from(`${text}\n`);
  }
}

// Ids of requests: some are used twice, some belong to nobody.
export const id = (random, last) => random.pick([last, last, last, 1, 0, -1, "1", `r-${last}`, null, 9007199254740993]);
