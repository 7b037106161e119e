export * from "./client.js";
export { AgentProxyError, ConflictError, ForbiddenError, NotFoundError, ProblemError, TooManyRequestsError, TransportError, UnauthorizedError } from "./errors.js";
export type * as schemas from "./schemas.js";
export type { AgentSessionConfig, Answer, EventPage, OpenPermission, PermissionAnswer, ProcessDetails, Receipt, SessionInfo, SessionPermission } from "./schemas.js";
