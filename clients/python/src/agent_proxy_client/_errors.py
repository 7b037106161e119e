"""Errors of the client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .schemas import ProblemDetails, Receipt


class AgentProxyError(Exception):
    """Base of all errors of this package."""


class TransportError(AgentProxyError):
    """No answer: the server is not reachable, or the connection broke. `__cause__` has the error of httpx."""


class ProblemError(AgentProxyError):
    """Problem object (RFC 9457) that the server answered with."""

    def __init__(self, problem: ProblemDetails) -> None:
        super().__init__(f"{problem['type']} ({problem['status']}): {problem['detail']}")
        self.problem = problem

    @property
    def type(self) -> str:
        """Kind of problem: `unknown-session`, `busy`, … See the page "Exit codes and problems"."""
        return self.problem["type"]

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.problem["status"]

    @property
    def detail(self) -> str:
        """Operation that was tried, its target, and advice."""
        return self.problem["detail"]

    @property
    def receipt(self) -> Receipt | None:
        """Receipt of a kill that something survived."""
        return self.problem.get("receipt")


class UnauthorizedError(ProblemError):
    """No token, or one that the server does not know (401)."""


class ForbiddenError(ProblemError):
    """The caller may not do this (403)."""


class NotFoundError(ProblemError):
    """No such session, process, agent, profile or model (404)."""


class ConflictError(ProblemError):
    """The session's state does not allow this: it is busy, suspended or ended, or its id is taken (409)."""


class TooManyRequestsError(ProblemError):
    """Too many requests, or too many sessions (429)."""


_BY_STATUS: dict[int, type[ProblemError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    429: TooManyRequestsError,
}


def problem_error(status: int, body: bytes) -> ProblemError:
    """Returns the error for an answer, which need not be agent-proxy's: a proxy on the way answers with HTML."""
    try:
        problem = json.loads(body)
        if not (isinstance(problem, dict) and {"type", "title", "status", "detail"} <= problem.keys()):
            raise ValueError
    except ValueError:
        detail = body.decode(errors="replace")[:1000]
        problem = {"type": "about:blank", "title": "no problem object", "status": status, "detail": detail}
    return _BY_STATUS.get(status, ProblemError)(cast("ProblemDetails", problem))
