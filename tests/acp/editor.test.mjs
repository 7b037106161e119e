// An editor by the official SDK's client, through `agent-proxy acp` with the fake agent: with a daemon, and without.
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import path from "node:path";
import { after, before, describe, test } from "node:test";
import * as acp from "@agentclientprotocol/sdk";
import { Editor } from "./editor.mjs";
import { makePlace, processesOf, program, run, soon, untilNone } from "./place.mjs";

const fake = (place) => ["--agent", "acp", "--", program, "fake-agent", "--modes", "--store", path.join(place.folder, "store")];

for (const withDaemon of [false, true]) {
  describe(withDaemon ? "with a daemon" : "by itself", () => {
    let place;
    before(() => {
      place = makePlace();
      if (withDaemon) run(place, "serve", "--detach", "--state-dir", path.join(place.folder, "state"));
    });
    after(() => {
      if (withDaemon) run(place, "stop");
      rmSync(place.folder, { recursive: true });
    });

    test("a turn with everything that an editor shows", async () => {
      const editor = new Editor(place, fake(place));
      await editor.begin(place);
      const image = { type: "image", mimeType: "image/png", data: "iVBORw0KGgo=" };
      const link = { type: "resource_link", name: "a", uri: `file://${place.work}/a.txt` };
      const turn = await editor.prompt("think hm\ntool Read\nedit a.txt\nplan 1/3\ncommands review\ntitle Plums\nsay hello\nblocks", [image, link]);
      assert.equal(turn.stopReason, "end_turn");
      assert.match(editor.text(), /hello\n/);
      const kinds = new Set(editor.updates.map((update) => update.sessionUpdate));
      for (const kind of ["agent_thought_chunk", "agent_message_chunk", "tool_call", "tool_call_update", "plan", "available_commands_update", "session_info_update"])
        assert.ok(kinds.has(kind), `${kind}: ${[...kinds]}`);
      const diff = editor.updates.flatMap((update) => update.content ?? []).find((block) => block.type === "diff");
      assert.ok(diff.newText.length > 0 && diff.path.endsWith("a.txt"), JSON.stringify(diff));
      const plan = editor.updates.find((update) => update.sessionUpdate === "plan");
      assert.deepEqual(plan.entries.map((entry) => entry.status), ["completed", "in_progress", "pending"]);
      await editor.leave();
      await untilNone(place);
    });

    test("permission requests are the editor's to answer", async () => {
      const editor = new Editor(place, fake(place));
      await editor.begin(place);
      let asked;
      editor.answer = (params) => {
        asked = params;
        return { outcome: { outcome: "selected", optionId: params.options.find((option) => option.kind === "allow_once").optionId } };
      };
      assert.equal((await editor.prompt("ask to write")).stopReason, "end_turn");
      assert.equal(asked.toolCall.title, "to write");
      assert.match(editor.text(), /permission: allow-once/);
      await editor.leave();
    });

    test("a cancelled turn ends as cancelled, also while a permission is asked for", async () => {
      const editor = new Editor(place, fake(place));
      const sessionId = await editor.begin(place);
      for (const script of ["say begun\nwait", "say again\nask to write\nwait"]) {
        let asked;
        const question = new Promise((resolve) => { asked = resolve; });
        editor.answer = () => { asked(); return new Promise((resolve) => { editor.give = () => resolve({ outcome: { outcome: "cancelled" } }); }); };
        const turn = editor.prompt(script);
        const word = script.startsWith("say begun") ? "begun\n" : "again\n";
        await editor.until(word, (update) => update.content?.text === word);
        if (script.includes("ask")) await soon("the question", question);
        await editor.agent.notify(acp.methods.agent.session.cancel, { sessionId });
        editor.give?.();
        assert.equal((await turn).stopReason, "cancelled");
      }
      assert.equal((await editor.prompt("say on")).stopReason, "end_turn");
      await editor.leave();
    });

    test("modes, and errors that name what is wrong", async () => {
      const editor = new Editor(place, fake(place));
      const sessionId = await editor.begin(place);
      assert.deepEqual(editor.session.modes.availableModes.map((mode) => mode.id), ["build", "plan"], JSON.stringify(editor.session));
      const model = editor.session.configOptions.find((option) => option.id === "model");
      assert.deepEqual(model.options.map((option) => option.value), ["fake-1", "fake-2"]);
      await editor.ask(acp.methods.agent.session.setMode, { sessionId, modeId: "plan" });
      await editor.prompt("mode");
      assert.match(editor.text(), /plan/);
      const refused = async (method, params, wanted) => assert.rejects(editor.ask(method, params), (error) => { assert.match(error.message + JSON.stringify(error.data ?? null), wanted); return true; });
      await refused(acp.methods.agent.session.new, { cwd: "work", mcpServers: [] }, /cwd: given is .*absolute/);
      await refused(acp.methods.agent.session.prompt, { sessionId: "nobody", prompt: [{ type: "text", text: "x" }] }, /not open/);
      await refused(acp.methods.agent.session.prompt, { sessionId, prompt: [{ type: "audio", mimeType: "audio/wav", data: "" }] }, /audio/);
      await editor.leave();
    });

    test("an editor that is killed in the middle of a turn leaves nothing", async () => {
      const editor = new Editor(place, fake(place));
      await editor.begin(place);
      const turn = editor.prompt("setsid exec sleep 3072\nsay begun\nwait").catch(() => {});
      await editor.until("begun", (update) => update.content?.text === "begun\n");
      assert.ok(processesOf(place).length > 0);
      // What an editor's death is for its agent.
      editor.child.stdin.destroy();
      await soon("the end", editor.ended);
      await untilNone(place);
      await turn;
    });

    test("a death of the program itself leaves nothing either", async () => {
      const editor = new Editor(place, fake(place));
      await editor.begin(place);
      const turn = editor.prompt("daemon exec sleep 3073\nsay begun\nwait").catch(() => {});
      await editor.until("begun", (update) => update.content?.text === "begun\n");
      editor.child.kill("SIGKILL");
      await soon("the end", editor.ended);
      await untilNone(place);
      await turn;
    });

    if (withDaemon) {
      test("a session is the daemon's, is suspended when the editor leaves, and can be loaded", async () => {
        const editor = new Editor(place, fake(place));
        const sessionId = await editor.begin(place);
        await editor.prompt("say plum");
        assert.ok(JSON.parse(run(place, "sessions", "--json")).some((session) => session.sessionId === sessionId));
        await editor.leave();
        await untilNone(place);
        const next = new Editor(place, fake(place));
        await next.ask(acp.methods.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
        const listed = await next.ask(acp.methods.agent.session.list, { cwd: place.work });
        assert.ok(listed.sessions.some((session) => session.sessionId === sessionId), JSON.stringify(listed));
        next.session = { sessionId };
        await next.ask(acp.methods.agent.session.load, { sessionId, cwd: place.work, mcpServers: [] });
        assert.match(next.text(), /plum\n/);
        assert.ok(next.updates.some((update) => update.sessionUpdate === "user_message_chunk" && update.content.text === "say plum"));
        await next.prompt("history");
        assert.match(next.text(), /1 before/);
        await next.leave();
        run(place, "delete", sessionId);
      });

      test("what others prompt is shown, and the first answer to a question counts", async () => {
        const editor = new Editor(place, fake(place));
        const sessionId = await editor.begin(place);
        let asked;
        const question = new Promise((resolve) => { asked = resolve; });
        // Its user never answers.
        editor.answer = () => { asked(); return new Promise(() => {}); };
        const turn = editor.prompt("ask to write\nsay done");
        await soon("the question", question);
        run(place, "permit", sessionId, "permission-1", "allow");
        assert.equal((await turn).stopReason, "end_turn");
        run(place, "prompt", sessionId, "say from elsewhere");
        await editor.until("text", (update) => update.content?.text === "from elsewhere\n");
        assert.ok(editor.updates.some((update) => update.sessionUpdate === "user_message_chunk" && update.content.text === "say from elsewhere"));
        await editor.leave();
      });

      test("a session is loaded with its conversation after a restart of the daemon", async () => {
        const editor = new Editor(place, fake(place));
        const sessionId = await editor.begin(place);
        await editor.prompt("say quince");
        await editor.leave();
        run(place, "restart");
        const next = new Editor(place, fake(place));
        await next.ask(acp.methods.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
        next.session = { sessionId };
        await next.ask(acp.methods.agent.session.load, { sessionId, cwd: place.work, mcpServers: [] });
        assert.match(next.text(), /quince\n/);
        assert.ok(next.updates.some((update) => update.sessionUpdate === "user_message_chunk" && update.content.text === "say quince"));
        await next.leave();
      });
    }
  });
}
