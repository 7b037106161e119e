"""The client for asyncio at a daemon."""

from __future__ import annotations

import asyncio

import httpx
from agent_proxy_client import AsyncClient, AsyncSession
from conftest import Daemon
from cutter import Cutter


async def text_of(session: AsyncSession, turns: int) -> str:
    """Reads the text of so many turns."""
    text = ""
    async for event in session.events(type=["stream:text", "stream:complete"]):
        if event["type"] == "stream:complete":
            turns -= 1
            if turns == 0:
                break
        else:
            text += event["payload"]["text"]
    return text


def test_many_sessions_at_once(daemon: Daemon) -> None:
    async def main() -> None:
        async with AsyncClient(socket=daemon.socket) as client:
            sessions = await asyncio.gather(
                *(client.start(agent="acp", command=["my-agent"], cwd=daemon.cwd) for _ in range(4))
            )
            readers = [asyncio.create_task(text_of(session, 2)) for session in sessions]
            for session in sessions:
                assert await session.prompt("say one") == 1
                assert await session.prompt("say two", mode="queue") == 2
            assert await asyncio.wait_for(asyncio.gather(*readers), 60) == ["one\ntwo\n"] * 4
            living = [info["sessionId"] async for info in client.sessions(agent="acp", status="idle", page_size=3)]
            assert {session.id for session in sessions} <= set(living)
            receipts = await asyncio.gather(*(session.kill(grace_ms=0) for session in sessions))
            assert [receipt["survivors"] for receipt in receipts] == [[]] * 4
            await asyncio.gather(*(session.delete() for session in sessions))

    asyncio.run(main())


def test_events_over_cut_connections(daemon: Daemon) -> None:
    async def main() -> None:
        async with AsyncClient(socket=daemon.socket) as client:
            session = await client.start(agent="acp", command=["my-agent"], cwd=daemon.cwd)
            await session.ask("flood 100 50")
            await session.kill()
            with Cutter(daemon.port, 4000) as cutter:
                async with AsyncClient(f"http://127.0.0.1:{cutter.port}", token=daemon.token) as cut:
                    followed = [event async for event in cut.session(session.id).events()]
                assert cutter.connections > 5
            assert followed == (await session.page())["events"]
            await session.delete()

    asyncio.run(main())


def test_events_of_some_types_of_a_session_that_is_deleted(daemon: Daemon) -> None:
    async def main() -> None:
        async with AsyncClient(socket=daemon.socket) as client:
            session = await client.start(agent="acp", command=["my-agent"], cwd=daemon.cwd)
            connections = 0

            async def before_request(_: httpx.Request) -> None:
                nonlocal connections
                connections += 1
                if connections == 2:
                    await session.delete()

            async with httpx.AsyncClient(
                base_url=daemon.url,
                headers={"Authorization": f"Bearer {daemon.token}"},
                event_hooks={"request": [before_request]},
            ) as http:
                events = AsyncClient(http=http).session(session.id).events(type="session:started")
                assert (await anext(events))["type"] == "session:started"
                await session.kill()
                assert [event async for event in events] == []
            assert connections == 2

    asyncio.run(main())
