import type { ProblemDetails, Receipt } from "./schemas.js";

/** Base of all errors of this package. */
export class AgentProxyError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** No answer: the server is not reachable, the connection broke, or the time is over. `cause` has the error of `fetch`. */
export class TransportError extends AgentProxyError {}

/** Problem object (RFC 9457) that the server answered with. */
export class ProblemError extends AgentProxyError {
  constructor(readonly problem: ProblemDetails) {
    super(`${problem.type} (${problem.status}): ${problem.detail}`);
  }

  /** Kind of problem: `unknown-session`, `busy`, … See the page "Exit codes and problems". */
  get type(): string { return this.problem.type; }

  /** HTTP status. */
  get status(): number { return this.problem.status; }

  /** Operation that was tried, its target, and advice. */
  get detail(): string { return this.problem.detail; }

  /** Receipt of a kill that something survived. */
  get receipt(): Receipt | null { return this.problem.receipt ?? null; }
}

/** No token, or one that the server does not know (401). */
export class UnauthorizedError extends ProblemError {}

/** The caller may not do this (403). */
export class ForbiddenError extends ProblemError {}

/** No such session, process, agent, profile or model (404). */
export class NotFoundError extends ProblemError {}

/** The session's state does not allow this: it is busy, suspended or ended, or its id is taken (409). */
export class ConflictError extends ProblemError {}

/** Too many requests, or too many sessions (429). */
export class TooManyRequestsError extends ProblemError {}

const BY_STATUS: Record<number, typeof ProblemError> = {
  401: UnauthorizedError, 403: ForbiddenError, 404: NotFoundError, 409: ConflictError, 429: TooManyRequestsError,
};

/** Makes the error for an answer, which need not be agent-proxy's: a proxy on the way answers with HTML. */
export function problemError(status: number, body: string): ProblemError {
  const ofServer = (value: unknown): value is ProblemDetails =>
    typeof value === "object" && value !== null && ["type", "title", "status", "detail"].every((name) => name in value);
  let problem: unknown;
  try {
    problem = JSON.parse(body);
  } catch { /* Below. */ }
  if (!ofServer(problem)) {
    problem = { type: "about:blank", title: "no problem object", status, detail: body.slice(0, 1000) } satisfies ProblemDetails;
  }
  // A problem in a stream has a status of its own.
  const details = problem as ProblemDetails;
  return new (BY_STATUS[details.status] ?? ProblemError)(details);
}
