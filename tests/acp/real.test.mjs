// Real agents against the mock model, for editors by the official SDK's client and for acpx: new, prompt, permission, cancel, load, and the
// editor's death in the middle of a turn. Nothing is left after each. AGENT_PROXY_REAL names the agents, AGENT_PROXY_AGENTS is their folder.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, readFileSync, rmSync } from "node:fs";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import * as acp from "@agentclientprotocol/sdk";
import { Editor } from "./editor.mjs";
import { cmdline, makePlace, processesOf, processesWith, program, run, runOther, soon, untilNone, waitFor } from "./place.mjs";

const acpx = fileURLToPath(new URL("node_modules/acpx/dist/cli.js", import.meta.url));
const chat = { provider: "mock", api: "openai-chat", model: "mock-model" };
// How each speaks with its model, and how its model has a sub-agent run a command.
const AGENTS = {
  "claude-code": {
    ...chat, api: "anthropic-messages",
    delegates: (task) => `call: Agent ${JSON.stringify({ description: "count", prompt: task, subagent_type: "general-purpose", run_in_background: false })}`,
  },
  // In its own sandbox it asks for nothing that it may do there.
  codex: { ...chat, api: "openai-responses", flags: ["--agent-sandbox", "none"] },
  opencode: { ...chat, delegates: (task) => `call: task ${JSON.stringify({ description: "count", prompt: task, subagent_type: "general" })}` },
  gemini: { provider: "google", api: "gemini", model: "gemini-2.5-flash", flags: ["--env", "GEMINI_CLI_TRUST_WORKSPACE=true"] },
  pi: chat,
};

// Starts a mock model whose requests are lines of a file.
async function mockModel(log) {
  const child = spawn(path.join(path.dirname(program), "mock-model"), ["0", log], { env: {}, stdio: ["pipe", "pipe", "inherit"] });
  const url = await soon("the mock model's address", new Promise((resolve) => child.stdout.once("data", (text) => resolve(`${text}`.trim()))));
  return { child, url };
}

const choose = (kind) => (params) => ({ outcome: { outcome: "selected", optionId: params.options.find((option) => option.kind === kind).optionId } });

for (const name of process.env.AGENT_PROXY_REAL.split(" ")) {
  const agent = AGENTS[name];
  assert.ok(agent, `no agent ${name}: there are ${Object.keys(AGENTS)}`);
  describe(name, () => {
    let place, model, argv, log;
    before(async () => {
      place = makePlace();
      place.env.PATH = `${process.env.AGENT_PROXY_AGENTS}/bin:${place.env.PATH}`;
      log = path.join(place.folder, "model.jsonl");
      model = await mockModel(log);
      const url = `${model.url}/${agent.api === "gemini" ? "v1beta" : "v1"}`;
      runOther(place, { input: "sk-mock" }, program, "models", "create", "mock", "--provider", agent.provider, "--api", agent.api, "--base-url", url,
        "--model", agent.model, "--key-stdin");
      argv = ["--agent", name, "--model-config", "mock", ...agent.flags ?? []];
      run(place, "serve", "--detach", "--state-dir", path.join(place.folder, "state"));
    });
    after(async () => {
      run(place, "stop");
      const ended = new Promise((resolve) => model.child.on("exit", resolve));
      model.child.stdin.end();
      await soon("the mock model's end", ended);
      rmSync(place.folder, { recursive: true });
    });

    const made = (file) => existsSync(path.join(place.work, file));
    const lastRequest = () => readFileSync(log, "utf8").trimEnd().split("\n").at(-1);
    const runs = (command) => processesOf(place).filter((pid) => cmdline(pid).includes(command));

    test("SDK: new, prompt, permission, cancel, and on", async () => {
      const editor = new Editor(place, argv);
      const sessionId = await editor.begin(place);
      assert.equal((await editor.prompt("good morning")).stopReason, "end_turn");
      assert.match(editor.text(), /you said: good morning/);

      editor.answer = choose("allow_once");
      assert.equal((await editor.prompt("shell: touch allowed && expr 40 + 2")).stopReason, "end_turn");
      assert.ok(made("allowed"), JSON.stringify(editor.updates));
      assert.match(editor.text(), /done: 42/);
      assert.ok(editor.updates.some((update) => update.sessionUpdate === "tool_call_update" && update.status === "completed"));
      editor.answer = choose("reject_once");
      await editor.prompt("shell: touch denied && expr 50 + 3");
      assert.ok(!made("denied"));
      assert.ok(!editor.text().includes("done: 53"));

      const slow = editor.prompt("slow: 2000");
      await editor.until("the first words", (update) => update.sessionUpdate === "agent_message_chunk" && update.content.text.includes("3 "));
      await editor.agent.notify(acp.methods.agent.session.cancel, { sessionId });
      assert.equal((await slow).stopReason, "cancelled");
      assert.ok(!editor.text().includes(" 2000 "));
      editor.answer = choose("allow_once");
      const tool = editor.prompt("shell: tail -f /dev/null");
      await waitFor("the tool", () => runs("tail -f /dev/null").length > 0);
      await editor.agent.notify(acp.methods.agent.session.cancel, { sessionId });
      assert.equal((await tool).stopReason, "cancelled");
      await waitFor("the tool's end", () => runs("tail -f /dev/null").length === 0);
      assert.equal((await editor.prompt("and on")).stopReason, "end_turn");
      assert.match(editor.text(), /you said: and on/);
      await editor.leave();
      await untilNone(place);
    });

    test("SDK: a session is loaded with its conversation", async () => {
      const editor = new Editor(place, argv);
      const sessionId = await editor.begin(place);
      await editor.prompt("plums are blue");
      await editor.leave();
      await untilNone(place);
      const next = new Editor(place, argv);
      await next.ask(acp.methods.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
      next.session = { sessionId };
      await next.ask(acp.methods.agent.session.load, { sessionId, cwd: place.work, mcpServers: [] });
      assert.match(next.text(), /you said: plums are blue/);
      assert.equal((await next.prompt("what are plums?")).stopReason, "end_turn");
      assert.match(next.text(), /you said: what are plums\?/);
      assert.ok(lastRequest().includes("plums are blue"), "the agent has forgotten what was said");
      await next.leave();
      await untilNone(place);
    });

    if (agent.delegates) {
      test("SDK: a tool of a sub-agent is asked for", async () => {
        const editor = new Editor(place, argv);
        await editor.begin(place);
        editor.answer = choose("allow_once");
        assert.equal((await editor.prompt(agent.delegates("shell: touch delegated && expr 40 + 2"))).stopReason, "end_turn");
        assert.ok(made("delegated"), JSON.stringify(editor.updates));
        await editor.leave();
        await untilNone(place);
      });
    }

    test("SDK: an editor that dies in the middle of a turn leaves nothing", async () => {
      const editor = new Editor(place, argv);
      await editor.begin(place);
      editor.answer = choose("allow_once");
      const turn = editor.prompt("shell: tail -f /dev/null").catch(() => {});
      await waitFor("the tool", () => runs("tail -f /dev/null").length > 0);
      editor.child.stdin.destroy();
      editor.child.stdout.destroy();
      await soon("the end", editor.ended);
      await untilNone(place);
      await turn;
    });

    // acpx is given the agent as one text.
    const client = (...args) => [process.execPath, acpx, "--agent", [program, "acp", ...argv].join(" "), ...args];
    // What keeps acpx's session for its next command ends after its time.
    const ownerIsGone = () => waitFor("the end of acpx's server", () => processesWith(place, "node_modules/acpx").length === 0);
    const clientRuns = (status, ...args) => runOther(place, { status }, ...client(...args));

    test("acpx: permission", async () => {
      assert.match(clientRuns(0, "--approve-all", "exec", "shell: touch allowed-by-acpx && expr 40 + 2"), /done: 42/);
      assert.ok(made("allowed-by-acpx"));
      clientRuns(5, "--deny-all", "exec", "shell: touch denied-by-acpx && expr 50 + 3");
      assert.ok(!made("denied-by-acpx"));
      await untilNone(place);
    });

    test("acpx: new, prompt, load, cancel", async () => {
      clientRuns(0, "--ttl", "1", "sessions", "new");
      assert.match(clientRuns(0, "--ttl", "1", "prompt", "pears are green"), /you said: pears are green/);
      // The next command loads it.
      await ownerIsGone();
      assert.match(clientRuns(0, "--ttl", "1", "prompt", "what are pears?"), /you said: what are pears\?/);
      assert.ok(lastRequest().includes("pears are green"), "the agent has forgotten what was said");
      // What is given to a server that ends meanwhile, acpx loses.
      await ownerIsGone();
      const [node, ...args] = client("--ttl", "1", "prompt", "slow: 2000");
      const slow = spawn(node, args, { env: place.env, cwd: place.work, stdio: ["ignore", "pipe", "inherit"] });
      let said = "";
      const ended = new Promise((resolve) => slow.on("exit", resolve));
      await soon("the first words", new Promise((resolve) => slow.stdout.on("data", (text) => { said += text; if (said.includes("3 4 ")) resolve(); })));
      clientRuns(0, "--ttl", "1", "cancel");
      await soon("the end of the cancelled prompt", ended);
      assert.ok(!said.includes(" 2000 "));
      clientRuns(0, "sessions", "close");
      await untilNone(place);
      await ownerIsGone();
    });

    test("acpx: killed in the middle of a turn", async () => {
      const [node, ...args] = client("--approve-all", "exec", "shell: tail -f /dev/null");
      const editor = spawn(node, args, { env: place.env, cwd: place.work, stdio: "ignore" });
      const ended = new Promise((resolve) => editor.on("exit", resolve));
      await waitFor("the tool", () => runs("tail -f /dev/null").length > 0);
      editor.kill("SIGKILL");
      await soon("the end", ended);
      await untilNone(place);
    });
  });
}
