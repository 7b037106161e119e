// Starts a session, follows its events, answers its permission request, and kills it with the receipt.
import { Client } from "agent-proxy-client";

const client = new Client({ url: process.env.AGENT_PROXY_URL ?? "", token: process.env.AGENT_PROXY_TOKEN ?? "" });
const session = await client.start({ agent: "acp", command: ["my-agent"], cwd: process.cwd() });
await session.prompt("ask May I?");
for await (const event of session.events()) {
  if (event.type === "stream:text") process.stdout.write(event.payload.text);
  if (event.type === "permission:requested") {
    console.log(event.payload.title);
    await session.answer(event.payload.id, "allow", "ada");
  }
  if (event.type === "stream:complete") break;
}
const receipt = await session.kill();
console.log(receipt.survivors.length, "survivors, proof:", receipt.proof);
