"""Parts of the protocol without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote

#: Seconds between attempts to connect again: the first, and the most.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 3.0

#: Seconds without a byte after which a connection of events is taken for dead. The server sends a comment every 15 s.
SILENCE = 45.0

#: Statuses after which a reader of events tries again.
RETRIED = frozenset({429, 502, 503, 504})

#: Query or body: members that are `None` are left out.
Members = Mapping[str, Any]


class ServerSentEvent(NamedTuple):
    """Event of a stream of server-sent events."""

    id: str
    name: str
    data: str


class ServerSentEvents:
    """Parser of a stream of server-sent events. An event that is cut off by the end of the stream is none."""

    def __init__(self) -> None:
        self._rest = b""
        self._id = ""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Takes a piece of the stream. Returns the events that it completes."""
        # By newlines alone: a text in an event may have any other character that ends a line.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if event := self._line(line.decode()):
                yield event

    def _line(self, line: str) -> ServerSentEvent | None:
        if not line:
            event = ServerSentEvent(self._id, self._name or "message", "\n".join(self._data))
            self._name, self._data = "", []
            return event
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id":
            self._id = value
        elif field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        return None


def given(members: Members) -> dict[str, Any]:
    """Leaves out the members that are `None`."""
    return {name: value for name, value in members.items() if value is not None}


def query(members: Members) -> dict[str, str]:
    """Formats the members of a query."""

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, (list, tuple)):
            return ",".join(value)
        return str(value)

    return {name: text(value) for name, value in given(members).items()}


def segment(text: str) -> str:
    """Escapes one segment of a path."""
    return quote(text, safe="")


def next_cursor(link: str | None) -> str | None:
    """Returns the cursor of the next page, by the header `Link`."""
    for part in (link or "").split(","):
        target, _, parameters = part.strip().partition(">")
        if 'rel="next"' in parameters:
            return parse_qs(target.partition("?")[2]).get("cursor", [None])[0]
    return None
