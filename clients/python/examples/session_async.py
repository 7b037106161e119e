"""The same with asyncio, on the server's Unix socket."""

import asyncio
import os

from agent_proxy_client import AsyncClient


async def main() -> None:
    async with AsyncClient(socket=os.environ["AGENT_PROXY_SOCKET"]) as client:
        session = await client.start(agent="acp", command=["my-agent"], cwd=os.getcwd())
        await session.prompt("ask May I?")
        async for event in session.events():
            match event["type"]:
                case "stream:text":
                    print(event["payload"]["text"], end="")
                case "permission:requested":
                    print(event["payload"]["title"])
                    await session.answer(event["payload"]["id"], "allow", by="ada")
                case "stream:complete":
                    break
        receipt = await session.kill()
        print(len(receipt["survivors"]), "survivors, proof:", receipt["proof"])


asyncio.run(main())
