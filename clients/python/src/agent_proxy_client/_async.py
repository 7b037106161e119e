"""Client for asyncio. `_sync.py` is generated from this file: see `generate`."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self, Unpack, cast

import httpx

from ._errors import ProblemError, TransportError, problem_error
from ._protocol import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    RETRIED,
    SILENCE,
    Members,
    ServerSentEvents,
    given,
    next_cursor,
    query,
    segment,
)
from .schemas import (
    AbortPolicy,
    AgentSessionConfig,
    Answer,
    Envelope,
    EventPage,
    OpenPermission,
    PermissionAnswer,
    ProcessDetails,
    PromptMode,
    PromptPart,
    Receipt,
    RecordedReceipt,
    SessionInfo,
    SessionPermission,
    SessionStatus,
)


class AsyncClient:
    """Connection to one agent-proxy server: by `url` and `token`, or by the path of its Unix `socket`.

    `timeout` is the longest wait for an answer in seconds; the server's own is 60 s. `reconnect` is the time in seconds for which
    a reader of events that lost its connection tries again. `http` is a client of httpx to use instead, with its own address
    and headers; it is not closed.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        socket: str | None = None,
        timeout: float = 90.0,
        reconnect: float = 60.0,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        if [url, socket, http].count(None) != 2:
            raise ValueError("one of url, socket and http is needed")
        self._timeout = timeout
        self._reconnect = reconnect
        self._owns_http = http is None
        self._http = http or httpx.AsyncClient(
            base_url=url or "http://daemon",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            transport=httpx.AsyncHTTPTransport(uds=socket) if socket else None,
            # Each reader of events has a connection of its own.
            limits=httpx.Limits(max_connections=None),
            trust_env=socket is None,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._owns_http:
            await self._http.aclose()

    async def start(
        self, *, idempotency_key: str | None = None, timeout: float | None = None, **config: Unpack[AgentSessionConfig]
    ) -> AsyncSession:
        """Starts a session, and waits until its agent is ready. With an `idempotency_key` it can be sent again."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        info = await self.request("POST", "/v1/sessions", body=config, headers=headers, timeout=timeout)
        return self.session(info["sessionId"])

    def session(self, id: str) -> AsyncSession:
        """Returns the session with this id, without a request."""
        return AsyncSession(self, id)

    def stream(self, id: str) -> AsyncStream:
        """Returns the stream with this id, which need not have a session or any event yet, without a request."""
        return AsyncStream(self, id)

    async def sessions(
        self,
        *,
        status: SessionStatus | Sequence[SessionStatus] | None = None,
        agent: str | None = None,
        user_id: str | None = None,
        workspace_id: str | None = None,
        text: str | None = None,
        archived: bool | None = None,
        sort: Literal["startedAt", "-startedAt", "id", "-id"] | None = None,
        page_size: int = 100,
    ) -> AsyncIterator[SessionInfo]:
        """Lists the sessions, and asks for a page at a time."""
        members: dict[str, Any] = {
            "status": status,
            "agent": agent,
            "userId": user_id,
            "workspaceId": workspace_id,
            "text": text,
            "archived": archived,
            "sort": sort,
            "limit": page_size,
        }
        while True:
            response = await self._send("GET", "/v1/sessions", parameters=members)
            for info in response.json():
                yield info
            cursor = next_cursor(response.headers.get("link"))
            if cursor is None:
                return
            members["cursor"] = cursor

    async def permissions(self) -> list[SessionPermission]:
        """Lists the open permission requests of all sessions."""
        return cast(list[SessionPermission], await self.request("GET", "/v1/permissions"))

    def events(
        self, *, after: int | str = 0, type: str | Sequence[str] | None = None, raw: bool = True
    ) -> AsyncGenerator[Envelope]:
        """Follows the events of all sessions, after a position or from `latest` on. Needs a server with a state directory."""
        return self._follow("/v1/events", after, {"type": type, "raw": raw})

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object | None = None,
        parameters: Members | None = None,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Sends any request of the API. Returns the JSON of the answer, or `None` for an answer without a body."""
        response = await self._send(method, path, body=body, parameters=parameters, headers=headers, timeout=timeout)
        return response.json() if response.content else None

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: object | None = None,
        parameters: Members | None = None,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        headers = {"Accept": "application/json", **(headers or {})}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            response = await self._http.request(
                method,
                path,
                content=content,
                params=query(parameters or {}),
                headers=headers,
                timeout=httpx.Timeout(self._timeout if timeout is None else timeout, connect=10.0),
            )
        except httpx.HTTPError as error:
            raise TransportError(f"{method} {path}: no answer: {error!r}") from error
        if not response.is_success:
            raise problem_error(response.status_code, response.content)
        return response

    async def _page(self, path: str, after: int | str, members: Members) -> EventPage:
        return cast(EventPage, await self.request("GET", path, parameters={"from": after, **members}))

    async def _follow(self, path: str, after: int | str, members: Members) -> AsyncGenerator[Envelope]:
        """Reads server-sent events to the end of the session. A broken connection goes on behind the last event that was whole."""
        if after == "latest":
            # A number from here on: an event may come while there is no connection.
            after = (await self._page(path, "latest", {"limit": 1}))["next"]
        last, last_type = str(int(after)), ""
        is_complete = False
        pause, give_up_at = FIRST_PAUSE, math.inf
        while True:
            try:
                async with self._http.stream(
                    "GET",
                    path,
                    params=query({**members, "from": last}),
                    headers={"Accept": "text/event-stream"},
                    timeout=httpx.Timeout(10.0, read=SILENCE),
                ) as response:
                    if response.status_code == 204:
                        return
                    if not response.is_success:
                        raise problem_error(response.status_code, await response.aread())
                    give_up_at, is_complete = math.inf, False
                    parser = ServerSentEvents()
                    async for chunk in response.aiter_bytes():
                        for event in parser.feed(chunk):
                            if event.name == "problem":
                                raise problem_error(500, event.data.encode())
                            pause, last = FIRST_PAUSE, event.id or last
                            if event.data:
                                envelope = cast(Envelope, json.loads(event.data))
                                last_type = envelope["type"]
                                yield envelope
                if last_type == "session:ended":
                    # No further connection: the server may have ended with its sessions.
                    return
                is_complete = True
            except (httpx.HTTPError, ProblemError) as error:
                if is_complete and isinstance(error, ProblemError) and error.type == "unknown-session":
                    # Ended, unseen by a reader of some types, and deleted before this connection.
                    return
                if isinstance(error, ProblemError) and error.status not in RETRIED:
                    raise
                give_up_at = min(give_up_at, time.monotonic() + self._reconnect)
                if time.monotonic() + pause > give_up_at:
                    if isinstance(error, ProblemError):
                        raise
                    raise TransportError(f"GET {path}: the connection is lost: {error!r}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


class AsyncStream:
    """Stream of events."""

    _base = "/v1/streams/"

    def __init__(self, client: AsyncClient, id: str) -> None:
        self._client = client
        self.id = id
        self._path = self._base + segment(id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    async def append(self, type: str, payload: object = None, *, metadata: dict[str, Any] | None = None) -> int:
        """Appends an event. Returns its offset."""
        body = {"type": type, "payload": payload, **given({"metadata": metadata})}
        return int((await self._client.request("POST", f"{self._path}/events", body=body))["offset"])

    def events(
        self, *, after: int | str = 0, type: str | Sequence[str] | None = None, raw: bool = True
    ) -> AsyncGenerator[Envelope]:
        """Follows the events after an offset, or from `latest` on, to the end of the session; those of a stream without one for good.

        Each event comes once, in order, over lost connections and restarts of the server. Where the server has lost some, a
        `session:gap` stands for them.
        """
        return self._client._follow(f"{self._path}/events", after, {"type": type, "raw": raw})

    async def page(
        self,
        *,
        after: int | str = 0,
        limit: int | None = None,
        type: str | Sequence[str] | None = None,
        raw: bool = True,
    ) -> EventPage:
        """Reads the events that exist: `limit` of them at most. `next` is the `after` of the next page."""
        return await self._client._page(f"{self._path}/events", after, {"limit": limit, "type": type, "raw": raw})


class AsyncSession(AsyncStream):
    """Session of an agent."""

    _base = "/v1/sessions/"

    async def _post(self, path: str, body: object, *, timeout: float | None = None) -> Any:
        return await self._client.request("POST", f"{self._path}/{path}", body=body, timeout=timeout)

    async def info(self) -> SessionInfo:
        """Describes the session."""
        return cast(SessionInfo, await self._client.request("GET", self._path))

    async def prompt(
        self,
        text: str = "",
        *,
        parts: Sequence[PromptPart] = (),
        mode: PromptMode = "refuse",
        by: str | None = None,
        metadata: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> int | None:
        """Sends a prompt. Returns the number of its turn; `None` where the agent has no turns.

        While a turn runs, `refuse` raises a `ConflictError`, `queue` lets it wait, and `steer` sends it into that turn.
        """
        body = {"text": text, "mode": mode, "parts": list(parts), **given({"by": by, "metadata": metadata})}
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        answer = await self._client.request("POST", f"{self._path}/prompt", body=body, headers=headers)
        return cast(int | None, answer["turn"])

    async def ask(
        self,
        text: str = "",
        *,
        parts: Sequence[PromptPart] = (),
        mode: PromptMode = "refuse",
        by: str | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float = 3600.0,
    ) -> Answer:
        """Sends a prompt, and waits for the end of its turn. The turn goes on if that is not in time."""
        body = {"text": text, "mode": mode, "parts": list(parts), **given({"by": by, "metadata": metadata})}
        return cast(Answer, await self._post("ask", body, timeout=timeout))

    async def steer(self, text: str, *, parts: Sequence[PromptPart] = ()) -> None:
        """Sends a text into the running turn."""
        await self._post("steer", {"text": text, "parts": list(parts)})

    async def abort(self, policy: AbortPolicy = "leaveProcesses") -> Receipt | None:
        """Cancels the turn. With `killTurnProcesses` also ends what the turn has started, and returns the receipt."""
        return cast(Receipt | None, await self._post("abort", {"policy": policy}))

    async def permissions(self) -> list[OpenPermission]:
        """Lists the open permission requests."""
        return cast(list[OpenPermission], await self._client.request("GET", f"{self._path}/permissions"))

    async def answer(self, request: str, answer: PermissionAnswer, *, by: str | None = None) -> None:
        """Answers a permission request: `allow`, `deny`, `{"option": "ID"}`, …"""
        await self._post(f"permissions/{segment(request)}", {"answer": answer, **given({"by": by})})

    async def processes(self) -> list[ProcessDetails]:
        """Lists the processes, those that are gone too."""
        return cast(list[ProcessDetails], await self._client.request("GET", f"{self._path}/processes"))

    async def signal(self, pid: int, signal: str | int, *, start_time: int | None = None) -> None:
        """Sends a signal to one process; with `start_time` only to the process that began then."""
        await self._post(f"processes/{pid}/signal", {"signal": signal, **given({"startTime": start_time})})

    async def kill_process(self, pid: int, *, tree: bool = False, grace_ms: int | None = None) -> Receipt:
        """Ends one process; with `tree` everything below it too."""
        parameters = {"tree": tree, "graceMs": grace_ms}
        path = f"{self._path}/processes/{pid}"
        return cast(Receipt, await self._client.request("DELETE", path, parameters=parameters))

    async def kill(self, *, grace_ms: int | None = None, keep_agent: bool = False) -> Receipt:
        """Ends the session, and returns the receipt. Raises a `ProblemError` (`survivors`) if something outlived the kill.

        `keep_agent` ends what the agent has started alone.
        """
        body = {"keepAgent": keep_agent, **given({"graceMs": grace_ms})}
        return cast(Receipt, await self._post("kill", body))

    async def receipts(self, *, limit: int | None = None) -> list[RecordedReceipt]:
        """Lists the receipts of its end and its suspensions, the last one first."""
        answer = await self._client.request("GET", f"{self._path}/receipts", parameters={"limit": limit})
        return cast(list[RecordedReceipt], answer)

    async def delete(self, *, force: bool = False) -> None:
        """Forgets an ended or suspended session; with `force` with changes of its workspace that are not applied."""
        await self._client.request("DELETE", self._path, parameters={"force": force})
