"""The blocking client at a daemon."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import httpx
import pytest
from agent_proxy_client import (
    Client,
    ConflictError,
    Envelope,
    NotFoundError,
    ProblemError,
    Session,
    TransportError,
    UnauthorizedError,
)
from conftest import Daemon
from cutter import Cutter

PACKAGE = Path(__file__).parent.parent


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.url, token=daemon.token) as client:
        yield client


@pytest.fixture
def session(client: Client, daemon: Daemon) -> Iterator[Session]:
    session = client.start(agent="acp", command=["my-agent"], cwd=daemon.cwd)
    yield session
    session.kill(grace_ms=0)
    session.delete()


def until(session: Session, kind: str, after: int = 0) -> Envelope:
    """Waits for an event."""
    return next(event for event in session.events(after=after) if event["type"] == kind)


@pytest.mark.parametrize("name", ["session.py", "session_async.py"])
def test_the_examples_of_the_readme(daemon: Daemon, name: str) -> None:
    example = PACKAGE / "examples" / name
    readme = (PACKAGE / "README.md").read_text()
    code = example.read_text().split("\n", 2)[2]
    assert f"```python\n{code}```" in readme
    run = subprocess.run(
        [sys.executable, example], env=daemon.env, cwd=daemon.cwd, capture_output=True, text=True, timeout=60
    )
    assert run.stderr == ""
    assert f"```text\n{run.stdout}```" in readme


def test_ask_and_steer(session: Session) -> None:
    assert session.ask("say hello\nsay a\u2028b\u0085ä")["reply"] == "hello\na\u2028b\u0085ä\n"
    turn = session.prompt("wait")
    with pytest.raises(ConflictError) as refused:
        session.prompt("say more")
    assert refused.value.type == "busy"
    with pytest.raises(ProblemError) as unsupported:
        # Agents that speak ACP take nothing into a running turn.
        session.steer("say steered")
    assert unsupported.value.type == "unsupported"
    assert session.abort() is None
    ended = next(
        event for event in session.events(type="stream:complete") if event.get("metadata", {}).get("turn") == turn
    )
    assert ended["payload"]["stopReason"] == "cancelled"
    texts = [event["payload"]["text"] for event in session.page(type="stream:text")["events"]]
    assert "a\u2028b\u0085ä\n" in texts


def test_processes(session: Session) -> None:
    session.ask("setsid exec sleep 500\nspawn exec sleep 600")
    by_command = {" ".join([entry["command"] or "", *entry["args"]]): entry for entry in session.processes()}
    first, second = by_command["sleep 500"]["id"], by_command["sleep 600"]["id"]
    session.signal(first["pid"], "SIGTERM", start_time=first["startTime"])
    exited = next(
        event for event in session.events(type="process:exited") if event["payload"]["process"]["pid"] == first["pid"]
    )
    assert exited["payload"]["exit"] == {"signal": 15}
    receipt = session.kill_process(second["pid"], tree=True, grace_ms=0)
    assert receipt["survivors"] == []
    assert [entry["id"] for entry in receipt["processes"]] == [second]


def test_permissions(client: Client, session: Session) -> None:
    session.prompt("ask May I?")
    asked = until(session, "permission:requested")["payload"]
    assert [request["id"] for request in session.permissions()] == [asked["id"]]
    assert [(request["sessionId"], request["title"]) for request in client.permissions()] == [(session.id, "May I?")]
    session.answer(asked["id"], {"option": "reject-once"}, by="ada")
    resolved = until(session, "permission:resolved")["payload"]
    assert (resolved["option"], resolved["by"]) == ("reject-once", {"user": {"name": "ada"}})
    until(session, "stream:complete")
    with pytest.raises(NotFoundError):
        session.answer("permission-9", "allow")


def test_pages_of_sessions(client: Client, daemon: Daemon) -> None:
    ids = [f"page-{number}" for number in range(5)]
    sessions = [client.start(sessionId=id, agent="command", command=["cat"], cwd=daemon.cwd) for id in ids]
    assert [info["sessionId"] for info in client.sessions(agent="command", sort="id", page_size=2)] == ids
    for session in sessions:
        assert session.kill()["proof"] == "noChildren"
        assert [entry["type"] for entry in session.receipts()] == ["session:ended"]
        session.delete()
    with pytest.raises(NotFoundError) as gone:
        sessions[0].info()
    assert gone.value.type == "unknown-session"
    assert gone.value.detail.startswith("no session page-0")


def test_a_start_that_is_sent_again(client: Client, daemon: Daemon) -> None:
    first, again = (
        client.start(agent="command", command=["cat"], cwd=daemon.cwd, idempotency_key="start-1") for _ in range(2)
    )
    assert first.id == again.id
    first.kill()
    first.delete()


def test_events_over_cut_connections(client: Client, daemon: Daemon) -> None:
    session = client.start(agent="acp", command=["my-agent"], cwd=daemon.cwd)
    session.ask("flood 300 50")
    with (
        Cutter(daemon.port, 5000) as cutter,
        Client(f"http://127.0.0.1:{cutter.port}", token=daemon.token) as cut,
    ):
        events = cut.session(session.id).events(raw=False)
        followed = [next(events)]
        session.kill()
        followed.extend(events)
        assert cutter.connections > 10
    paged: list[Envelope] = []
    after = "0"
    while True:
        page = session.page(after=after, limit=100, raw=False)
        paged.extend(page["events"])
        after = page["next"]
        if not page["more"]:
            break
    assert followed == paged
    assert followed[-1]["type"] == "session:ended"
    assert list(session.events(after=int(followed[-1]["offset"]))) == []


@pytest.mark.parametrize("cut", [False, True])
def test_events_of_some_types_of_a_session_that_is_deleted(client: Client, daemon: Daemon, cut: bool) -> None:
    session = client.start(agent="acp", command=["my-agent"], cwd=daemon.cwd)
    session.ask("flood 100 50")
    connections = 0

    def before_request(_: httpx.Request) -> None:
        nonlocal connections
        connections += 1
        if connections == 2:
            if cut:
                session.kill()
            session.delete()

    with (
        Cutter(daemon.port, 2000) as cutter,
        httpx.Client(
            base_url=f"http://127.0.0.1:{cutter.port}" if cut else daemon.url,
            headers={"Authorization": f"Bearer {daemon.token}"},
            event_hooks={"request": [before_request]},
        ) as http,
    ):
        events = Client(http=http).session(session.id).events(type=["session:started", "stream:text"])
        assert next(events)["type"] == "session:started"
        if cut:
            with pytest.raises(NotFoundError):
                list(events)
        else:
            session.kill()
            assert {event["type"] for event in events} == {"stream:text"}
    assert connections == 2


def test_a_stream_over_restarts(daemon: Daemon, client: Client) -> None:
    stream = client.stream("notes")
    events = stream.events(type="note:*")
    received: list[int] = []

    def read() -> None:
        received.extend(event["payload"]["number"] for event in islice(events, 6))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for number in range(6):
        if number in (2, 4):
            daemon.stop()
            daemon.start()
        stream.append("note:taken", {"number": number}, metadata={"by": "ada"})
    reader.join(60)
    assert not reader.is_alive()
    assert received == list(range(6))
    assert [event["metadata"]["by"] for event in stream.page(type="note:*")["events"]] == ["ada"] * 6  # type: ignore[typeddict-item]


def test_events_of_all_sessions(client: Client) -> None:
    events = client.events(type="mark:*")
    client.stream("others").append("mark:first")
    first = next(events)
    client.stream("more").append("mark:second")
    assert [first["eventStreamId"], next(events)["eventStreamId"]] == ["others", "more"]


@pytest.mark.parametrize("existing", [0, 3])
def test_what_is_to_come(client: Client, existing: int) -> None:
    stream = client.stream(f"ticks-{existing}")
    for _ in range(existing):
        stream.append("tick:old")
    ended = threading.Event()

    def tick() -> None:
        while not ended.is_set():
            stream.append("tick:new")

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        events = list(islice(stream.events(after="latest"), 20))
    finally:
        ended.set()
        ticker.join()
    assert {event["type"] for event in events} == {"tick:new"}
    first = int(events[0]["offset"])
    assert [int(event["offset"]) for event in events] == list(range(first, first + 20))


def test_errors(daemon: Daemon) -> None:
    with Client(daemon.url, token="wrong") as client, pytest.raises(UnauthorizedError) as error:
        client.session("s-1").info()
    assert error.value.type == "unauthorized"
    with Client(daemon.url, token="wrong") as client, pytest.raises(UnauthorizedError):
        next(client.session("s-1").events())
    with Client(daemon.url, token=daemon.token) as client:
        with pytest.raises(NotFoundError):
            next(client.session("s-99").events())
        with pytest.raises(ProblemError) as usage:
            client.start(agent="no-such-agent")
        assert usage.value.type == "unknown-agent"
    with Client("http://127.0.0.1:1", reconnect=0.2) as nobody:
        with pytest.raises(TransportError):
            nobody.session("s-1").info()
        with pytest.raises(TransportError):
            next(nobody.session("s-1").events())
