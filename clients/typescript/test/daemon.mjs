// A daemon of its own for the tests, with the fake agent as `my-agent`; and a proxy that cuts connections off.
import { execFile } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { promisify } from "node:util";

const program = process.env.AGENT_PROXY ?? "";

/** Starts a daemon with folders of its own. */
export async function startDaemon() {
  const folder = mkdtempSync(path.join(tmpdir(), "agent-proxy-client-"));
  for (const name of ["run", "work", "bin"]) mkdirSync(path.join(folder, name), { mode: 0o700 });
  const agent = path.join(folder, "bin/my-agent");
  writeFileSync(agent, `#!/bin/sh\nexec "${program}" fake-agent "$@"\n`);
  chmodSync(agent, 0o755);
  const socket = path.join(folder, "run/daemon.sock");
  const own = { PATH: `${folder}/bin:${process.env.PATH}`, HOME: folder, AGENT_PROXY_SOCKET: socket, AGENT_PROXY_CONFIG_DIR: `${folder}/config` };
  const run = async (/** @type {string[]} */ ...args) => (await promisify(execFile)(program, args, { env: own, timeout: 60_000 })).stdout;
  const daemon = {
    socket, cwd: path.join(folder, "work"), port: 0, token: "", url: "",
    async start() {
      const said = JSON.parse(await run("serve", "--detach", "--json", "--listen", `127.0.0.1:${daemon.port}`, "--state-dir", `${folder}/state`));
      daemon.port = Number(new URL(said.addresses[0]).port);
      daemon.url = `http://127.0.0.1:${daemon.port}`;
    },
    async stop() {
      await run("stop", "--now");
    },
    /** Environment of an example. */
    env: () => ({ ...own, AGENT_PROXY_URL: daemon.url, AGENT_PROXY_TOKEN: daemon.token }),
    async close() {
      await daemon.stop();
      rmSync(folder, { recursive: true });
    },
  };
  await daemon.start();
  daemon.token = readFileSync(path.join(folder, "config/token"), "utf8").trim();
  return daemon;
}

/** Passes each connection on to a port, and cuts it off after `cut` bytes of the answer; the next gets some more. */
export async function startCutter(/** @type {number} */ port, /** @type {number} */ cut) {
  const cutter = { connections: 0, url: "", close: () => server.close() };
  const server = net.createServer((client) => {
    cutter.connections += 1;
    let left = cut + cutter.connections;
    const target = net.connect(port, "127.0.0.1");
    client.pipe(target);
    target.on("data", (data) => {
      client.write(data.subarray(0, left));
      left -= data.length;
      if (left <= 0) {
        target.destroy();
        client.end(() => client.destroy());
      }
    });
    target.on("close", () => client.end());
    for (const socket of [client, target]) socket.on("error", () => { client.destroy(); target.destroy(); });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(null)));
  const address = server.address();
  if (typeof address === "object") cutter.url = `http://127.0.0.1:${address?.port}`;
  return cutter;
}
