"""Client of the HTTP API of agent-proxy."""

from ._async import AsyncClient, AsyncSession, AsyncStream
from ._errors import (
    AgentProxyError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ProblemError,
    TooManyRequestsError,
    TransportError,
    UnauthorizedError,
)
from ._sync import Client, Session, Stream
from .schemas import Answer, Envelope, ProcessDetails, Receipt, SessionInfo, SessionPermission

__all__ = [
    "AgentProxyError",
    "Answer",
    "AsyncClient",
    "AsyncSession",
    "AsyncStream",
    "Client",
    "ConflictError",
    "Envelope",
    "ForbiddenError",
    "NotFoundError",
    "ProblemError",
    "ProcessDetails",
    "Receipt",
    "Session",
    "SessionInfo",
    "SessionPermission",
    "Stream",
    "TooManyRequestsError",
    "TransportError",
    "UnauthorizedError",
]
