// Claude Code and Codex as clients of the MCP server, set up by the lines of docs/mcp.md, against the mock model: by themselves, and as agents of
// our sessions. AGENT_PROXY is the program, AGENT_PROXY_AGENTS the folder of the agents, AGENT_PROXY_REAL the clients' names.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { makePlace, program, run, runOther, soon, untilNone } from "../acp/place.mjs";

const page = readFileSync(new URL("../../docs/mcp.md", import.meta.url), "utf8");

// The only block of the page that is about a client and has these words.
function snippet(language, ...words) {
  const blocks = [...page.matchAll(/^```(\w+)\n([^]*?)^```$/gm)].filter(([, of, text]) => of === language && words.every((word) => text.includes(word)));
  assert.equal(blocks.length, 1, `${language} ${words}: ${blocks.length} blocks of docs/mcp.md`);
  return blocks[0][2];
}

const lines = (text, word) => text.split("\n").filter((line) => line.startsWith(word)).join("\n");

// How each is pointed at the mock model, set up as the page says, and given a prompt.
const CLIENTS = {
  "claude-code": {
    env: (url) => ({
      ANTHROPIC_BASE_URL: url, ANTHROPIC_API_KEY: "sk-mock", ANTHROPIC_MODEL: "mock-model", ANTHROPIC_SMALL_FAST_MODEL: "mock-model", DISABLE_AUTOUPDATER: "1",
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    }),
    configure() {},
    stdio(place) { runOther(place, {}, "sh", "-c", snippet("sh", "claude mcp add", "agent-proxy mcp")); },
    http(place, port) { runOther(place, {}, "sh", "-c", lines(snippet("sh", "claude mcp add", "--transport http"), "claude").replaceAll("8480", port)); },
    remove(place) { runOther(place, {}, "claude", "mcp", "remove", "agents"); },
    prompt: (place, text) => runOther(place, {}, "claude", "-p", text, "--allowedTools", "mcp__agents"),
  },
  codex: {
    env: () => ({}),
    configure(place, url) {
      this.base = `model = "mock-model"\nmodel_provider = "mock"\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n[analytics]\nenabled = false\n`
        + `[model_providers.mock]\nname = "mock"\nbase_url = "${url}/v1"\nwire_api = "responses"\nsupports_websockets = false\nexperimental_bearer_token = "sk-mock"\n`;
      this.file = path.join(place.folder, ".codex/config.toml");
      mkdirSync(path.dirname(this.file));
    },
    stdio() { writeFileSync(this.file, this.base + snippet("toml", "[mcp_servers.agents]", "command")); },
    http(place, port) {
      writeFileSync(this.file, this.base + snippet("toml", "[mcp_servers.agents]", "url").replaceAll("8480", port));
      const exported = lines(snippet("sh", "export AGENT_PROXY_TOKEN"), "export");
      place.env.AGENT_PROXY_TOKEN = runOther(place, {}, "sh", "-c", `${exported}\necho "$AGENT_PROXY_TOKEN"`).trim();
    },
    remove(place) { delete place.env.AGENT_PROXY_TOKEN; },
    prompt: (place, text) => runOther(place, {}, "codex", "exec", "--skip-git-repo-check", text),
  },
};

const call = (tool, input) => `call: coding_agent_${tool} ${JSON.stringify(input)}`;

for (const name of process.env.AGENT_PROXY_REAL.split(" ")) {
  const client = CLIENTS[name];
  assert.ok(client, `no client ${name}: there are ${Object.keys(CLIENTS)}`);
  describe(name, () => {
    let place, model, port;
    const serve = (...flags) => {
      const { addresses } = JSON.parse(run(place, "serve", "--detach", "--json", "--state-dir", path.join(place.folder, "state"), ...flags));
      port = addresses.length > 0 ? new URL(addresses[0]).port : undefined;
    };
    const network = ["--listen", "127.0.0.1:0"];
    before(async () => {
      place = makePlace();
      // Found where a client looks that was given nothing of ours: Codex passes on few variables.
      delete place.env.AGENT_PROXY_SOCKET;
      delete place.env.AGENT_PROXY_CONFIG_DIR;
      place.env.XDG_RUNTIME_DIR = path.join(place.folder, "run");
      place.env.PATH = `${path.dirname(program)}:${process.env.AGENT_PROXY_AGENTS}/bin:${place.env.PATH}`;
      model = spawn(path.join(path.dirname(program), "mock-model"), ["0"], { env: {}, stdio: ["pipe", "pipe", "inherit"] });
      const url = await soon("the mock model's address", new Promise((resolve) => model.stdout.once("data", (text) => resolve(`${text}`.trim()))));
      Object.assign(place.env, client.env(url));
      client.configure(place, url);
    });
    afterEach(async () => {
      run(place, "stop", "--now");
      for (const token of JSON.parse(run(place, "tokens", "list", "--json")).filter((token) => ["mcp", "codex"].includes(token.name)))
        run(place, "tokens", "revoke", token.name);
      await untilNone(place);
    });
    after(async () => {
      const ended = new Promise((resolve) => model.on("exit", resolve));
      model.stdin.end();
      await soon("the mock model's end", ended);
      rmSync(place.folder, { recursive: true });
    });

    const events = (session) => run(place, "events", session.sessionId, "--json");
    const sessions = () => JSON.parse(run(place, "sessions", "--json"));
    const fake = (more) => ({ agent_type: "acp", command: [program, "fake-agent"], ...more });

    // A session is started, spoken with and killed by the client's model.
    async function usesTools() {
      const said = client.prompt(place, call("start_session", fake({ initial_prompt: "say plums" })));
      const [started, ...others] = sessions();
      assert.deepEqual(others, []);
      assert.equal(started?.status, "idle", said);
      assert.ok(said.includes(started.sessionId), said);
      assert.ok(client.prompt(place, call("send_message", { session_id: started.sessionId, message: "say pears" })).includes(started.sessionId));
      for (const word of ["plums", "pears"]) assert.match(events(started), new RegExp(`"${word}`));
      assert.equal(sessions()[0].turns, 2);
      client.prompt(place, call("kill_session", { session_id: started.sessionId, grace_ms: 0 }));
      assert.equal(sessions().filter((session) => session.status !== "ended").length, 0);
      await untilNone(place);
    }

    test("over standard input and output", async () => {
      serve();
      client.stdio(place);
      await usesTools();
    });

    test("over HTTP", async () => {
      serve(...network);
      client.remove(place);
      client.http(place, port);
      await usesTools();
    });

    // Has the client do it as the agent of a session of the daemon's.
    function asSession(text) {
      const env = ["XDG_RUNTIME_DIR", "AGENT_PROXY_TOKEN", ...Object.keys(client.env(""))].filter((variable) => variable in place.env).flatMap((variable) => ["--env", variable]);
      const id = run(place, "start", "--agent", name, "--permission", "allow", "--home", "shared", ...env).trim();
      return run(place, "ask", id, text);
    }

    // A daemon that listens on the network hides its socket from its sessions.
    const ways = [["standard input and output", [], () => client.stdio(place)], ["HTTP", network, () => client.http(place, port)]];
    for (const [over, listening, set] of ways) {
      test(`as an agent of a session it is refused, over ${over}`, async () => {
        serve(...listening);
        client.remove(place);
        set();
        // Each says it in its own words.
        const said = asSession(call("start_session", fake({ initial_prompt: "say plums" })));
        assert.deepEqual(sessions().filter((session) => session.agent === "acp"), [], said);
      });

      test(`as an agent of a session it starts one that is deeper where that is allowed, over ${over}`, async () => {
        serve("--allow-sessions", ...listening);
        client.remove(place);
        set();
        const said = asSession(call("start_session", fake({ initial_prompt: "say plums" })));
        const deeper = sessions().find((session) => session.agent === "acp");
        assert.ok(deeper && said.includes(deeper.sessionId), said);
        assert.match(events(deeper), /"plums/);
        assert.equal(deeper.depth, 2);
        run(place, "kill", deeper.sessionId);
      });
    }
  });
}
