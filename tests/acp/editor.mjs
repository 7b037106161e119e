// Editors by the official SDK's client.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";
import { program, soon } from "./place.mjs";

// An editor: its agent's process, the updates that came, and how it answers permission requests. `argv` is of `agent-proxy acp`.
export class Editor {
  constructor(place, argv) {
    this.updates = [];
    this.waiting = [];
    this.answer = () => ({ outcome: { outcome: "cancelled" } });
    this.child = spawn(program, ["acp", ...argv], { env: place.env, stdio: ["pipe", "pipe", "pipe"] });
    this.stderr = "";
    this.child.stderr.on("data", (text) => { this.stderr += text; });
    this.ended = new Promise((resolve) => this.child.on("exit", (code, signal) => resolve(code ?? signal)));
    const stream = acp.ndJsonStream(Writable.toWeb(this.child.stdin), Readable.toWeb(this.child.stdout));
    this.connection = acp.client({ name: "test" })
      .onRequest(acp.methods.client.session.requestPermission, ({ params }) => this.answer(params))
      .onNotification(acp.methods.client.session.update, ({ params }) => {
        this.updates.push(params.update);
        for (const look of this.waiting) look();
      })
      .connect(stream);
    this.agent = this.connection.agent;
  }

  ask(method, params) { return soon(method, this.agent.request(method, params)); }

  async begin(place) {
    const begun = await this.ask(acp.methods.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
    assert.equal(begun.protocolVersion, acp.PROTOCOL_VERSION);
    assert.equal(begun.agentCapabilities.loadSession, true);
    this.session = await this.ask(acp.methods.agent.session.new, { cwd: place.work, mcpServers: [] });
    return this.session.sessionId;
  }

  prompt(text, more = []) {
    return this.ask(acp.methods.agent.session.prompt, { sessionId: this.session.sessionId, prompt: [{ type: "text", text }, ...more] });
  }

  // Waits for an update.
  async until(what, wanted) {
    await soon(what, new Promise((resolve) => {
      const look = () => { if (this.updates.some(wanted)) resolve(); };
      this.waiting.push(look);
      look();
    }));
    return this.updates.find(wanted);
  }

  text() {
    return this.updates.filter((update) => update.sessionUpdate === "agent_message_chunk").map((update) => update.content.text).join("");
  }

  async leave() {
    this.child.stdin.end();
    assert.equal(await soon("the end", this.ended), 0, this.stderr);
  }
}
