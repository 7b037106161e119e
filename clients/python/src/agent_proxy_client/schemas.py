"""Bodies of the API. Generated from docs/openapi.json by `generate`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

AbortPolicy: TypeAlias = Literal["leaveProcesses", "killTurnProcesses"]


class AbortRequest(TypedDict):
    """
    Body of `POST /v1/sessions/{id}/abort`: `{}`, `{"policy":"killTurnProcesses"}`. The answer to the second is a receipt.
    """

    policy: NotRequired[AbortPolicy]


AgentSandbox: TypeAlias = Literal["readOnly", "workspaceWrite", "none"]


class AgentSupport(TypedDict):
    """
    Capabilities stated in the catalog row; `null` where it states none.
    """

    mcp: bool | None
    sessionResume: bool | None
    shell: bool | None
    workspaceOnly: bool | None


class AppendRequest(TypedDict):
    """
    Body of `POST /v1/sessions/{id}/events`: an event to append.
    """

    type: str
    version: NotRequired[int]
    payload: NotRequired[Any]
    metadata: NotRequired[dict[str, Any] | None]


class AppendResponse(TypedDict):
    """
    Answer to an append.
    """

    offset: str


class AttachCommandResponse(TypedDict):
    """
    Answer to `GET /v1/sessions/{id}/attach-command` and `POST …/hand-over`.
    """

    command: list[str]
    cwd: str
    home: str | None


BudgetAction: TypeAlias = Literal["warn", "refusePrompts", "endTurn", "endSession"]


BudgetKind: TypeAlias = Literal["inputTokens", "outputTokens", "totalTokens", "cost"]


CheckVerdict: TypeAlias = Literal["ok", "note", "missing"]


ConfigSetting: TypeAlias = Literal[
    "permissionMode",
    "onLimit",
    "startMs",
    "firstResponseMs",
    "inactivityMs",
    "turnMs",
    "toolMs",
    "silenceMs",
    "silenceRepeatMs",
    "action",
]


ContainerEngine: TypeAlias = Literal["podman", "docker"]


class ContainerRemoval(TypedDict):
    """
    Removal of a session's container, in a receipt.
    """

    name: str
    isRemoved: bool
    failure: NotRequired[str | None]


Containment: TypeAlias = Literal["auto", "baseline", "cgroup", "strict"]


ContainmentLayer: TypeAlias = Literal["baseline", "cgroup", "strict"]


CostSource: TypeAlias = Literal["agent", "prices"]


class DaemonDescription(TypedDict):
    """
    The daemon's own part of `GET /v1/health`.
    """

    startedAt: str
    socket: str
    addresses: list[str]
    stateDir: str | None
    logFile: str | None
    node: str | None


class DoctorCheck(TypedDict):
    """
    Check of one feature.
    """

    name: str
    verdict: CheckVerdict
    needed: bool
    found: str
    advice: str | None


class EndReason2(TypedDict):
    """
    The session could not start, or its agent broke its protocol.
    """

    failed: str


class EndReason6(TypedDict):
    """
    The session used up this budget, whose action is to end it.
    """

    budgetExceeded: BudgetKind


class EndReason7(TypedDict):
    """
    The proxy did not answer this many pings in a row.
    """

    unresponsive: int


EnvVars: TypeAlias = dict[str, str]
"""
Environment variables. `Debug` shows names only: values are often secrets.
"""


class Metadata(TypedDict):
    """
    The turn, and what the caller gave with the append or the prompt.
    """

    turn: NotRequired[int]
    surface: NotRequired[Literal["terminal"]]


EscapeMark: TypeAlias = Literal["leftGroup", "leftSession", "reParented"]


class ExitStatus1(TypedDict):
    """
    The process exited with this code.
    """

    code: int


class ExitStatus2(TypedDict):
    """
    A signal of this number ended the process.
    """

    signal: int


ExitStatus: TypeAlias = ExitStatus1 | ExitStatus2


FileChange: TypeAlias = Literal["created", "modified", "deleted", "moved"]


class Hardening(TypedDict):
    """
    Protection of the supervisors, and of other sessions, from a session's processes.
    """

    undumpable: NotRequired[bool]
    landlock: NotRequired[bool | None]


class HoldLine(TypedDict):
    """
    Line of the answer to `GET /v1/sessions/{id}/hold`: `{"held":true}` at once, and last `{"held":false}`.
    """

    held: bool


Home: TypeAlias = Literal["shared", "own"]


HomePart: TypeAlias = str


class Detach(TypedDict):
    fetchWithinMs: NotRequired[int]
    spoolBytes: NotRequired[int]


class HostDeath1(TypedDict):
    """
    Keeps the session with its fork server, to wait for a host with the same state directory. Its messages meanwhile are kept.
    """

    detach: Detach


HostDeath: TypeAlias = Literal["kill"] | HostDeath1


class ImportRequest(TypedDict):
    """
    Body of `POST /v1/import`.
    """

    path: str


class InstalledAgent(TypedDict):
    """
    Agent of the catalog, with the results of its discovery.
    """

    id: str
    title: str
    description: str
    enabled: bool
    protocol: str
    anyProgram: bool
    usable: bool
    found: bool
    path: str | None
    version: str | None
    tried: list[str]
    untried: str | None
    missing: list[str]
    install: str | None
    files: list[str]
    mcpConfigFiles: list[str]
    defaultModel: str | None
    capabilities: list[str]
    supports: AgentSupport


InstanceStatus: TypeAlias = Literal["starting", "ready", "stopped"]


KeyboardWish: TypeAlias = Literal["watch", "type", "take"]


KillCause: TypeAlias = Literal[
    "killSession",
    "killAll",
    "killProcess",
    "agentExit",
    "failed",
    "shutdown",
    "suspend",
    "hostDied",
    "proxyDied",
    "forkServerDied",
    "abortTurn",
    "limit",
    "recovery",
    "lease",
]


class KillRequest(TypedDict):
    """
    Body of `POST /v1/sessions/{id}/kill`.
    """

    pid: NotRequired[int | None]
    tree: NotRequired[bool]
    keepAgent: NotRequired[bool]
    graceMs: NotRequired[int | None]


LimitAction: TypeAlias = Literal["warn", "kill_process", "kill_session"]


LimitForm: TypeAlias = Literal["cgroup", "rlimit", "clock", "watchdog"]


LimitKind: TypeAlias = Literal["memory", "processes", "cpuTime", "cpuPercent", "openFiles", "fileSize", "wallClock"]


class Limits(TypedDict):
    """
    Limits of a session: none by default, except that core dumps are off.
    """

    memoryBytes: NotRequired[int | None]
    processes: NotRequired[int | None]
    cpuTimeMs: NotRequired[int | None]
    cpuPercent: NotRequired[int | None]
    openFiles: NotRequired[int | None]
    fileSizeBytes: NotRequired[int | None]
    wallClockMs: NotRequired[int | None]
    coreDumps: NotRequired[bool]
    onLimit: NotRequired[LimitAction]


class LoginLinkResponse(TypedDict):
    """
    Answer to `POST /v1/login-links`.
    """

    urls: list[str]
    expiresAt: str


class Stdio(TypedDict):
    command: str
    args: list[str]
    env: EnvVars


class McpTransport1(TypedDict):
    """
    Program that the agent starts and that speaks on its standard input and output.
    """

    stdio: Stdio


class Http(TypedDict):
    url: str
    headers: EnvVars


class McpTransport2(TypedDict):
    """
    Server that is already running.
    """

    http: Http


McpTransport: TypeAlias = McpTransport1 | McpTransport2


ModelApi: TypeAlias = Literal["anthropic-messages", "openai-responses", "openai-chat", "gemini"]


class ModelDescription(TypedDict):
    """
    Model configuration without its key, as it is listed.
    """

    name: str
    provider: str
    api: str
    baseUrl: str | None
    model: str | None
    key: str


NetworkRule: TypeAlias = str


NodeName: TypeAlias = str


NodePresence: TypeAlias = Literal["alive", "silent", "left"]


ObserverKind: TypeAlias = Literal["connector", "polling"]


OnAgentExit: TypeAlias = Literal["kill", "keep"]


OnDetach: TypeAlias = Literal["keep", "end"]


class Inject(TypedDict):
    history: str


class OnMissing1(TypedDict):
    """
    Starts a new conversation, whose first prompt begins with this.
    """

    inject: Inject


OnMissing: TypeAlias = Literal["fail"] | Literal["startAnew"] | OnMissing1


OnUsageLimit: TypeAlias = Literal["fail", "wait"]


class SetModel(TypedDict):
    model: str


class Operation1(TypedDict):
    """
    Uses this model from now on. Answer: `null`.
    """

    setModel: SetModel


class SetMode(TypedDict):
    mode: str


class Operation2(TypedDict):
    """
    Works in this mode from now on. Answer: `null`.
    """

    setMode: SetMode


class SetThinking(TypedDict):
    level: str


class Operation3(TypedDict):
    """
    Sets the thinking level from now on. Answer: `null`.
    """

    setThinking: SetThinking


class Native(TypedDict):
    message: Any


class Operation4(TypedDict):
    """
    Sends a command of the agent's own protocol, unchanged. Answer: the agent's reply, unchanged.
    """

    native: Native


class CompactWith(TypedDict):
    instructions: str


class Operation5(TypedDict):
    """
    Shortens the conversation like `Compact`, by instructions of the caller's for the summary. Answer: the same.
    """

    compactWith: CompactWith


Operation: TypeAlias = (
    Operation1
    | Operation2
    | Operation3
    | Literal["compact"]
    | Literal["getState"]
    | Literal["getMessages"]
    | Literal["listSessions"]
    | Operation4
    | Operation5
    | Literal["listChoices"]
)


class PermissionAnswer1(TypedDict):
    """
    Takes the option with this id.
    """

    option: str


class AllowWith(TypedDict):
    input: Any


class PermissionAnswer2(TypedDict):
    """
    Allows the action with this input instead: an edited command, or the answers to a question.
    """

    allowWith: AllowWith


class DenyWith(TypedDict):
    message: str


class PermissionAnswer3(TypedDict):
    """
    Rejects the action, with a reason for the model; the turn continues if the agent can do that.
    """

    denyWith: DenyWith


PermissionAnswer: TypeAlias = (
    Literal["allow"]
    | Literal["deny"]
    | PermissionAnswer1
    | PermissionAnswer2
    | PermissionAnswer3
    | Literal["cancelled"]
)


PermissionMode: TypeAlias = Literal["ask", "allow", "deny", "readOnly"]


PermissionOptionKind: TypeAlias = Literal["allowOnce", "allowAlways", "rejectOnce", "rejectAlways", "other"]


class PermissionReply(TypedDict):
    """
    Body of `POST /v1/sessions/{id}/permissions/{request}`: `{"answer":"allow"}`, `{"answer":{"option":"ID"},"by":"alice"}`.
    """

    answer: PermissionAnswer
    by: NotRequired[str | None]


class ProcessId(TypedDict):
    """
    Permanent identity of a process: a pid alone is recycled, a pid with its start time is not.
    """

    pid: int
    startTime: int


class ProcessOutcome1(TypedDict):
    """
    The process ended with this status: reaped by us, or as reported by the kernel.
    """

    ended: ExitStatus


ProcessOutcome: TypeAlias = ProcessOutcome1 | Literal["gone"] | Literal["survived"]


ProcessStatus: TypeAlias = Literal["running", "completed", "killed", "error"]


class ProcessUse(TypedDict):
    """
    Current resource use of a session's processes.
    """

    processes: int
    cpuPercent: float
    rssBytes: int


class ProfileContainer(TypedDict):
    """
    Container of the agent.
    """

    image: NotRequired[str | None]
    engine: NotRequired[ContainerEngine | None]
    mounts: NotRequired[list[str]]


class ProfileLimits(TypedDict):
    """
    Limits, each in the unit that its name ends with.
    """

    memory_bytes: NotRequired[int | None]
    processes: NotRequired[int | None]
    cpu_time_ms: NotRequired[int | None]
    cpu_percent: NotRequired[int | None]
    open_files: NotRequired[int | None]
    file_size_bytes: NotRequired[int | None]
    wall_clock_ms: NotRequired[int | None]
    core_dumps: NotRequired[bool | None]
    on_limit: NotRequired[LimitAction | None]


class PromptAccepted(TypedDict):
    """
    Answer to a prompt that is not waited for.
    """

    turn: int | None


PromptMode: TypeAlias = Literal["refuse", "queue", "steer"]


class PromptPart1(TypedDict):
    """
    Plain text.
    """

    text: str


class Image(TypedDict):
    mimeType: str
    data: str


class PromptPart2(TypedDict):
    """
    Picture as bytes.
    """

    image: Image


class File(TypedDict):
    path: str


class PromptPart3(TypedDict):
    """
    Reference to a file for the agent; its content is not read here.
    """

    file: File


PromptPart: TypeAlias = PromptPart1 | PromptPart2 | PromptPart3


class PromptRequest(TypedDict):
    """
    Body of `POST /v1/sessions/{id}/prompt`, and of `…/ask`.
    """

    text: NotRequired[str]
    parts: NotRequired[list[PromptPart]]
    mode: NotRequired[PromptMode]
    wait: NotRequired[bool]
    stream: NotRequired[bool]
    callback: NotRequired[str | None]
    context: NotRequired[Any]
    by: NotRequired[str | None]
    metadata: NotRequired[dict[str, Any] | None]


class Proof1(TypedDict):
    """
    The fork server, which has other children, saw this many rounds with no unknown child and nothing unknown reaped.
    """

    quietRounds: int


Proof: TypeAlias = Literal["noChildren"] | Proof1 | Literal["processGone"] | Literal["none"]


class QueuedPrompt(TypedDict):
    """
    A prompt that waits for its turn, as it is listed.
    """

    offset: str
    at: str
    text: str
    by: str | None


class ReadyResponse(TypedDict):
    """
    Answer to `GET /v1/ready`.
    """

    ready: bool
    degraded: list[str]


ReapedBy: TypeAlias = Literal["proxy", "forkServer", "parent", "system"]


class ReceiptEntry(TypedDict):
    """
    Process in a receipt.
    """

    id: ProcessId
    ppid: int
    pgid: int
    sid: int
    command: NotRequired[str | None]
    outcome: ProcessOutcome
    reapedBy: NotRequired[ReapedBy | None]


class RecordChange(TypedDict):
    """
    Body of `POST /v1/records/{id}`: changes, applied one after the other.
    """

    title: NotRequired[str | None]
    addTags: NotRequired[list[str]]
    removeTags: NotRequired[list[str]]
    archived: NotRequired[bool | None]


class RememberedKill(TypedDict):
    """
    Kill of a session whose owner was silent: the owner carries it out when it is back.
    """

    by: str
    atNode: NodeName


class OnCrash(TypedDict):
    max: int
    backoffMs: int


class Restart1(TypedDict):
    """
    Restarts the session after a pause that doubles with each crash.
    """

    onCrash: OnCrash


Restart: TypeAlias = Literal["never"] | Restart1


ResumeFallback: TypeAlias = Literal["fail", "new", "history"]


class Native1(TypedDict):
    id: str


class ResumeFrom1(TypedDict):
    """
    Conversation with this id of the agent's.
    """

    native: Native1


Role: TypeAlias = Literal["read", "operate", "admin"]


RuleDecision: TypeAlias = Literal["ask", "allow", "deny"]


SandboxMode: TypeAlias = Literal["off", "read-only", "workspace"]


Secret: TypeAlias = str


SessionId: TypeAlias = str


class SessionMount(TypedDict):
    """
    File or directory of the host that a container sees.
    """

    source: str
    target: str
    readOnly: NotRequired[bool]


SessionOrder: TypeAlias = Literal["startedAt", "-startedAt", "id", "-id"]


SessionPhase: TypeAlias = Literal["running", "suspended", "ended"]


class Busy(TypedDict):
    turn: int


class SessionState1(TypedDict):
    """
    A turn runs.
    """

    busy: Busy


SessionStatus: TypeAlias = Literal["starting", "idle", "busy", "suspended", "ended"]


class SignalRequest(TypedDict):
    """
    Body of `POST /v1/sessions/{id}/processes/{pid}/signal`: `{"signal":"SIGINT"}`.
    """

    signal: str | int
    startTime: NotRequired[int | None]


class SignalResponse(TypedDict):
    """
    Answer to a signal.
    """

    process: ProcessId
    signal: str | int


class SlashCommand(TypedDict):
    """
    Command that the agent offers in its prompt: `/name input`.
    """

    name: str
    description: str | None
    argumentHint: str | None


SocketProtocol: TypeAlias = Literal["tcp", "udp"]


class StayingSession(TypedDict):
    """
    Session that did not move.
    """

    sessionId: SessionId
    reason: str


class SteerRequest(TypedDict):
    """
    Body of `POST /v1/sessions/{id}/steer`.
    """

    text: NotRequired[str]
    parts: NotRequired[list[PromptPart]]


class StopProgressLine1(TypedDict):
    """
    Turns are running.
    """

    call: Literal["draining"]
    turns: int
    longestMs: int


class StopReason1(TypedDict):
    """
    Another reason, in the agent's words.
    """

    other: str


StopReason: TypeAlias = (
    Literal["endTurn"]
    | Literal["cancelled"]
    | Literal["refusal"]
    | Literal["maxTokens"]
    | Literal["maxRequests"]
    | StopReason1
)


class StopRequest(TypedDict):
    """
    Body of `POST /v1/stop`: `{}`, `{"now":true}`. The answer is a stream of `StopProgressLine`s.
    """

    now: NotRequired[bool]
    detach: NotRequired[bool]


Surface: TypeAlias = Literal["machine", "terminal", "both"]


class SuspendRequest(TypedDict):
    """
    Body of `POST /v1/sessions/{id}/suspend` and `…/hand-over`.
    """

    graceMs: NotRequired[int | None]


ForegroundItem: TypeAlias = int


BackgroundItem: TypeAlias = int


class TerminalSize(TypedDict):
    """
    Size of a terminal, in cells.
    """

    rows: int
    columns: int


TimeoutAction: TypeAlias = Literal["warn", "abortTurn", "killSession"]


TimeoutKind: TypeAlias = Literal["start", "firstResponse", "inactivity", "turn", "tool"]


class Timeouts(TypedDict):
    """
    Clocks of a session, in milliseconds; `null` stops one (of the start: 0). The clocks of a turn stand still while a tool runs or a permission request is open.
    """

    startMs: NotRequired[int | None]
    firstResponseMs: NotRequired[int | None]
    inactivityMs: NotRequired[int | None]
    turnMs: NotRequired[int | None]
    toolMs: NotRequired[int | None]
    action: NotRequired[TimeoutAction]
    silenceMs: NotRequired[int | None]
    silenceRepeatMs: NotRequired[int | None]


ToolStatus: TypeAlias = Literal["pending", "inProgress", "completed", "failed"]


class TranscriptResponse(TypedDict):
    """
    Answer to `GET /v1/sessions/{id}/transcript`.
    """

    transcript: str


class Usage(TypedDict):
    """
    Tokens (and cost) of a turn. `null` for what the agent does not report.
    """

    inputTokens: int | None
    outputTokens: int | None
    cachedInputTokens: int | None
    cacheReadTokens: int | None
    cacheWriteTokens: int | None
    costUsd: float | None
    costSource: CostSource | None


class VersionResponse(TypedDict):
    """
    Answer to `GET /v1/version`.
    """

    version: str


class WebhookReceipt(TypedDict):
    """
    Answer to a webhook.
    """

    outcome: str
    id: str


class WebhookStatus(TypedDict):
    """
    Receiver or sender, as it is listed.
    """

    name: str
    direction: str
    kind: str
    counts: dict[str, int]
    waiting: int
    lastError: str | None


class WhoamiResponse(TypedDict):
    """
    Answer to `GET /v1/whoami`.
    """

    name: str
    role: Role
    user: str | None


WorkspaceKind: TypeAlias = Literal["off", "copy", "worktree", "overlay"]


class WorkspaceResult(TypedDict):
    """
    Answer to `POST /v1/sessions/{id}/workspace/apply` and `DELETE /v1/sessions/{id}/workspace`.
    """

    source: str
    files: int | None


class AgentInstance(TypedDict):
    """
    Instance of an agent's own server.
    """

    id: str
    port: int | None
    status: InstanceStatus
    sessionId: SessionId
    idleMs: int


class Budget(TypedDict):
    """
    Bounds on all turns of a session together, as its agent counts. Agents report at the end of a turn, and some also during it (after each request to the model): a turn can exceed a budget by its usage up to that report.

    Input counts all tokens read, those from a cache too. `cost_usd` is for agents that report a cost.
    """

    inputTokens: NotRequired[int | None]
    outputTokens: NotRequired[int | None]
    totalTokens: NotRequired[int | None]
    costUsd: NotRequired[float | None]
    action: NotRequired[BudgetAction]


class ChangedFile(TypedDict):
    """
    Changed file of a workspace.
    """

    path: str
    change: FileChange
    movedFrom: str | None


class ContainerStatus(TypedDict):
    """
    Container in force, as reported in `session:started`.
    """

    engine: ContainerEngine
    image: str
    name: str
    mounts: list[SessionMount]
    networkOff: bool


class EndReason1(TypedDict):
    """
    The agent exited by itself; with the exit status, where known.
    """

    agentExited: ExitStatus | None


class EndReason3(TypedDict):
    """
    The proxy died.
    """

    proxyDied: ExitStatus | None


class EndReason4(TypedDict):
    """
    The session passed this limit, whose action is to end it.
    """

    limitExceeded: LimitKind


class EndReason5(TypedDict):
    """
    This clock of the session ran out, whose action is to end it.
    """

    timedOut: TimeoutKind


EndReason: TypeAlias = (
    Literal["killed"]
    | EndReason1
    | EndReason2
    | EndReason3
    | Literal["forkServerDied"]
    | Literal["hostDied"]
    | EndReason4
    | EndReason5
    | Literal["shutdown"]
    | EndReason6
    | EndReason7
    | Literal["suspended"]
)


class Envelope(TypedDict):
    """
    Event with its position in a session's stream. A new release may add types, and members to payloads.
    """

    offset: str
    position: NotRequired[str]
    type: str
    version: int
    createdAt: str
    eventStreamId: SessionId
    payload: Any
    metadata: NotRequired[Metadata]


class EventPage(TypedDict):
    """
    Answer to `GET /v1/sessions/{id}/events` and `GET /v1/events` with `Accept: application/json`.
    """

    events: list[Envelope]
    next: str
    more: bool


class FleetNode(TypedDict):
    """
    Node of the fleet.
    """

    node: NodeName
    incarnation: str
    identity: NotRequired[str | None]
    version: str
    addresses: list[str]
    labels: dict[str, str]
    capacity: int | None
    sessions: int
    agents: list[str]
    takesOver: bool
    draining: bool
    layers: list[str]
    backlog: int
    presence: NodePresence
    silentSeconds: int
    isSelf: bool


class FleetSession(TypedDict):
    """
    Session of a fleet, and who has it.
    """

    sessionId: SessionId
    node: NodeName
    presence: NodePresence | None
    silentSeconds: int | None
    epoch: int
    phase: SessionPhase
    agent: str | None
    labels: dict[str, str]
    userId: str | None
    snapshot: str | None
    kill: RememberedKill | None


class ForgottenNode(TypedDict):
    """
    Answer to `POST /v1/fleet/nodes/{node}/forget`.
    """

    sessions: list[SessionId]


class FreeStreamInfo(TypedDict):
    """
    Stream without a session, as it is listed.
    """

    eventStreamId: SessionId
    lastOffset: str


class HealthResponse(TypedDict):
    """
    Answer to `GET /v1/health`.
    """

    version: str
    pid: int
    forkServer: ProcessId
    sessions: int
    waiting: int
    damaged: list[str]
    degraded: list[str]
    daemon: DaemonDescription | None


class ImportResponse(TypedDict):
    """
    Answer to an import; offsets are 20 decimal digits.
    """

    sessionId: SessionId
    first: str
    last: str


class Lifecycle(TypedDict):
    """
    Lifecycle of a session beyond one incarnation of its agent.
    """

    key: NotRequired[str | None]
    title: NotRequired[str | None]
    tags: NotRequired[list[str]]
    idleSuspendMs: NotRequired[int | None]
    resumeOnPrompt: NotRequired[bool]
    restart: NotRequired[Restart]
    replace: NotRequired[bool]
    onMissing: NotRequired[ResumeFallback]
    beforeStart: NotRequired[str | None]
    afterEnd: NotRequired[str | None]


class LimitInForce(TypedDict):
    """
    Limit, with its enforcement.
    """

    limit: LimitKind
    value: int
    form: LimitForm


class ListeningSocket(TypedDict):
    """
    Socket on which a process listens, in its network namespace.
    """

    protocol: SocketProtocol
    address: str
    port: int


class LoginLinkRequest(TypedDict):
    """
    Body of `POST /v1/login-links`.
    """

    role: NotRequired[Role]
    user: NotRequired[str | None]


class McpServer(TypedDict):
    """
    MCP server that the agent may use.
    """

    name: str
    transport: McpTransport


class ModelChange(TypedDict):
    """
    Body of `PATCH /v1/models/{name}`: what is given is changed, and `null` removes it.
    """

    provider: NotRequired[str | None]
    api: NotRequired[ModelApi | None]
    baseUrl: NotRequired[str | None]
    model: NotRequired[str | None]
    key: NotRequired[Secret | None]
    keyEnv: NotRequired[str | None]


class ModelSettings(TypedDict):
    """
    Body of `PUT /v1/models/{name}`: a model configuration. Without `key` and `keyEnv` the stored key stays.
    """

    provider: str
    api: NotRequired[ModelApi | None]
    baseUrl: NotRequired[str | None]
    model: NotRequired[str | None]
    key: NotRequired[Secret | None]
    keyEnv: NotRequired[str | None]


class MoveRequest(TypedDict):
    """
    Body of `POST /v1/fleet/sessions/{id}/move`: `{"to":"b"}`.
    """

    to: NotRequired[NodeName | None]


MovedSession = TypedDict(
    "MovedSession",
    {
        "sessionId": SessionId,
        "from": NodeName,
        "to": NodeName,
        "epoch": int,
        "problem": str | None,
    },
)


class NetworkAccess1(TypedDict):
    """
    The session's own services, and these hosts.
    """

    allow: list[NetworkRule]


NetworkAccess: TypeAlias = Literal["host"] | Literal["off"] | NetworkAccess1


class NewModel(TypedDict):
    """
    Body of `POST /v1/models`: a model configuration. `key` is written to a file that the server's user alone can read.
    """

    name: str
    provider: str
    api: NotRequired[ModelApi | None]
    baseUrl: NotRequired[str | None]
    model: NotRequired[str | None]
    key: NotRequired[Secret | None]
    keyEnv: NotRequired[str | None]


class PermissionOption(TypedDict):
    """
    Possible answer to a permission request.
    """

    id: str
    name: str
    kind: PermissionOptionKind


class PermissionRule(TypedDict):
    """
    Permission rule: all of its given patterns must match. The first rule that matches decides. If a request asks for several things (`fetch+other`), each is decided: the request is denied if one of them is, and allowed if all are.

    `*` matches anything within a tool's name or a command; in a path `*` stays within a directory and `**` does not.
    """

    tool: NotRequired[str | None]
    command: NotRequired[str | None]
    path: NotRequired[str | None]
    decision: RuleDecision


class ProcessDetails(TypedDict):
    """
    Process of a session, with its age, what it has left, and the ports on which it listens.
    """

    id: ProcessId
    ppid: int
    pgid: int
    sid: int
    sessionId: SessionId
    command: str | None
    args: list[str]
    cwd: str | None
    startedAt: str
    status: ProcessStatus
    exit: ExitStatus | None
    error: str | None
    cpuPercent: float | None
    rssBytes: int | None
    tracked: bool
    ageMs: int | None
    marks: list[EscapeMark]
    listening: list[ListeningSocket]


class ProfileRule(TypedDict):
    """
    Permission rule; fields that it leaves open are absent.
    """

    tool: NotRequired[str | None]
    command: NotRequired[str | None]
    path: NotRequired[str | None]
    decision: RuleDecision


class ProfileSandbox(TypedDict):
    """
    Files in reach of the sessions.
    """

    mode: NotRequired[SandboxMode | None]
    read: NotRequired[list[str]]
    write: NotRequired[list[str]]
    network: NotRequired[NetworkAccess | None]


class ProfileTimeouts(TypedDict):
    """
    Clocks in milliseconds; 0 stops a clock.
    """

    start_ms: NotRequired[int | None]
    first_response_ms: NotRequired[int | None]
    inactivity_ms: NotRequired[int | None]
    turn_ms: NotRequired[int | None]
    tool_ms: NotRequired[int | None]
    silence_ms: NotRequired[int | None]
    silence_repeat_ms: NotRequired[int | None]
    action: NotRequired[TimeoutAction | None]


class Receipt(TypedDict):
    """
    Result of a kill. `is_empty` is true if it is proven.
    """

    sessionId: SessionId
    cause: KillCause
    processes: list[ReceiptEntry]
    layers: list[ContainmentLayer]
    rounds: int
    durationUs: int
    unattributed: list[ReceiptEntry]
    survivors: list[ProcessId]
    omitted: int
    proof: Proof
    cgroupEmpty: NotRequired[bool | None]
    unmarked: NotRequired[bool | None]
    container: NotRequired[ContainerRemoval | None]


class RecordedReceipt(TypedDict):
    """
    Receipt in a session's stream.
    """

    offset: str
    createdAt: str
    type: str
    receipt: Receipt


class Session(TypedDict):
    id: SessionId


class ResumeFrom2(TypedDict):
    """
    Conversation of this session of the manager's.
    """

    session: Session


ResumeFrom: TypeAlias = ResumeFrom1 | ResumeFrom2 | Literal["mostRecent"]


class ResumeOptions(TypedDict):
    """
    What a resume needs beside the session's configuration: secrets, since no record keeps these, so that a session of an earlier manager needs them again (retained while the manager lives); and what is done if the conversation is gone. `Debug` shows no values.
    """

    env: NotRequired[EnvVars]
    mcpServers: NotRequired[list[McpServer]]
    endpoint: NotRequired[str | None]
    notSecret: NotRequired[list[str]]
    onMissing: NotRequired[ResumeFallback]


ResumeRequest = TypedDict(
    "ResumeRequest",
    {
        "from": ResumeFrom,
        "fork": NotRequired[bool],
        "onMissing": NotRequired[OnMissing],
    },
)


class SandboxStatus(TypedDict):
    """
    Sandbox in force, as reported in `session:started`.
    """

    mode: SandboxMode
    layer: str
    write: list[str]
    hidden: list[str]
    network: NetworkAccess


class SessionContainer(TypedDict):
    """
    Container of a session, as it is requested.
    """

    image: NotRequired[str | None]
    engine: NotRequired[ContainerEngine | None]
    mounts: NotRequired[list[SessionMount]]


class SessionMetrics(TypedDict):
    """
    Activity of a session so far.
    """

    messages: int
    toolCalls: int
    failedToolCalls: int
    permissionRequests: int
    errors: int
    usage: Usage
    events: int
    eventBytes: int
    busyMs: int
    silentMs: int
    missedPings: int


class SessionPermission(TypedDict):
    """
    Permission request that is open, with its session.
    """

    sessionId: SessionId
    id: str
    title: str
    tool: str
    kind: str
    command: str | None
    paths: list[str]
    input: Any
    options: list[PermissionOption]


class SessionSandbox(TypedDict):
    """
    Sandbox of a session, as it is requested.
    """

    mode: NotRequired[SandboxMode | None]
    read: NotRequired[list[str]]
    write: NotRequired[list[str]]
    network: NotRequired[NetworkAccess | None]


class Suspended(TypedDict):
    reason: EndReason
    receipt: Receipt | None


class SessionState2(TypedDict):
    """
    The processes have ended and the conversation is retained: `resume_session` resumes it.
    """

    suspended: Suspended


class Ended(TypedDict):
    reason: EndReason
    receipt: Receipt | None


class SessionState3(TypedDict):
    """
    The session is over.
    """

    ended: Ended


SessionState: TypeAlias = Literal["starting"] | Literal["idle"] | SessionState1 | SessionState2 | SessionState3


class StoppedSession(TypedDict):
    """
    Session that a daemon's end has ended.
    """

    sessionId: SessionId
    status: SessionStatus
    receipt: Receipt


class TerminalConfig(TypedDict):
    """
    Terminal of a session: the agent is started in it, as in a terminal window.
    """

    size: NotRequired[TerminalSize]
    onDetach: NotRequired[OnDetach]
    record: NotRequired[str | None]
    firstRow: NotRequired[int]
    foreground: NotRequired[list[ForegroundItem] | None]
    background: NotRequired[list[BackgroundItem] | None]
    visit: NotRequired[bool]
    observed: NotRequired[bool]
    reports: NotRequired[str | None]
    commands: NotRequired[str | None]


class ToolCall(TypedDict):
    """
    A tool call of a turn.
    """

    id: str
    name: str
    input: Any
    output: str
    state: ToolStatus


class TurnUsage(TypedDict):
    """
    Model usage of one turn.
    """

    turn: int
    usage: Usage


class WorkspaceDiff(TypedDict):
    """
    Changes in a workspace that are not applied.
    """

    files: list[ChangedFile]
    patch: str | None
    leftOut: list[str]


class WorkspaceInfo(TypedDict):
    """
    Workspace of a session.
    """

    sessionId: SessionId
    userId: str | None
    kind: WorkspaceKind
    source: str
    path: str
    cwd: str
    createdAt: str
    changedFiles: int | None


class Answer(TypedDict):
    """
    Answer of an agent to one prompt.
    """

    reply: str
    sessionId: SessionId
    turn: int
    toolCalls: list[ToolCall]
    usage: Usage | None
    stopReason: StopReason | None
    timedOut: TimeoutKind | None
    overBudget: BudgetKind | None
    unanswered: list[str]
    missedEvents: int
    cutBytes: int
    handlerStopped: str | None
    receipt: Receipt | None


class ContainmentStatus(TypedDict):
    """
    Measures in force for a session, as reported in its `session:started`.
    """

    layers: list[ContainmentLayer]
    observer: ObserverKind
    limits: list[LimitInForce]
    undumpable: bool
    landlock: bool
    ownCgroupsOnly: bool
    agentSandbox: str | None
    sandbox: SandboxStatus | None
    container: ContainerStatus | None


class DrainedNode(TypedDict):
    """
    What became of the sessions of a node that was drained.
    """

    moved: list[MovedSession]
    stay: list[StayingSession]


class OpenPermission(TypedDict):
    """
    Permission request of an agent that nobody has answered yet.
    """

    id: str
    title: str
    tool: str
    kind: str
    command: str | None
    paths: list[str]
    input: Any
    options: list[PermissionOption]


class PermissionPolicy(TypedDict):
    """
    Answers to a session's permission requests.
    """

    rules: NotRequired[list[PermissionRule]]
    deadlineMs: NotRequired[int | None]
    allowAtDeadline: NotRequired[bool]


class ProblemDetails(TypedDict):
    """
    Problem object. `type` is the kebab-case variant of the library's error.
    """

    type: str
    title: str
    status: int
    detail: str
    receipt: NotRequired[Receipt | None]


class ProfilePermissions(TypedDict):
    """
    Handling of permission requests.
    """

    mode: NotRequired[PermissionMode | None]
    rules: NotRequired[list[ProfileRule]]
    deadline_ms: NotRequired[int | None]
    allow_at_deadline: NotRequired[bool | None]


class SessionInfo(TypedDict):
    """
    Snapshot of one session.
    """

    sessionId: SessionId
    agent: str
    agentType: str | None
    userId: str | None
    workspaceId: str | None
    cwd: str
    profile: str | None
    home: str | None
    depth: int
    surface: Surface
    startedAt: str
    model: str | None
    mode: str | None
    thinking: str | None
    title: str | None
    agentTitle: str | None
    currentModel: str | None
    currentMode: str | None
    currentThinking: str | None
    commands: list[SlashCommand] | None
    nativeSessionId: str | None
    nativeSessionFile: str | None
    resumable: bool
    state: SessionState
    status: SessionStatus | None
    handedOver: bool
    ending: bool
    openPermissions: list[OpenPermission]
    screenStatus: str | None
    degraded: str | None
    archived: bool
    warm: bool
    proxy: ProcessId | None
    agentProcess: ProcessId | None
    measures: ContainmentStatus | None
    turns: int
    queued: list[QueuedPrompt]
    lastOffset: str
    heartbeat: str
    metrics: SessionMetrics
    processUse: ProcessUse | None


class StopProgressLine2(TypedDict):
    """
    All sessions have ended. The daemon exits.
    """

    call: Literal["stopped"]
    sessions: list[StoppedSession]
    detached: list[SessionId]


StopProgressLine: TypeAlias = StopProgressLine1 | StopProgressLine2


class AgentSessionConfig(TypedDict):
    """
    Configuration of a session. Only `agent` is required; in JSON every other field may be left out. `Debug` shows neither arguments, values of variables nor the system prompt.

    Start from `new`. There will be more fields: a literal without `..` breaks then.
    """

    sessionId: NotRequired[SessionId]
    agent: str
    command: NotRequired[list[str]]
    agentType: NotRequired[str | None]
    userId: NotRequired[str | None]
    workspaceId: NotRequired[str | None]
    cwd: NotRequired[str | None]
    model: NotRequired[str | None]
    systemPrompt: NotRequired[str | None]
    env: NotRequired[EnvVars]
    tools: NotRequired[list[str]]
    mcpServers: NotRequired[list[McpServer]]
    permissionMode: NotRequired[PermissionMode]
    maxTurns: NotRequired[int | None]
    maxPrompts: NotRequired[int | None]
    limits: NotRequired[Limits]
    onAgentExit: NotRequired[OnAgentExit]
    onHostDeath: NotRequired[HostDeath]
    permissions: NotRequired[PermissionPolicy]
    profile: NotRequired[str | None]
    modelConfig: NotRequired[str | None]
    mode: NotRequired[str | None]
    thinking: NotRequired[str | None]
    resume: NotRequired[ResumeRequest | None]
    ephemeral: NotRequired[bool]
    home: NotRequired[Home | None]
    endpoint: NotRequired[str | None]
    verbatim: NotRequired[bool | None]
    timeouts: NotRequired[Timeouts]
    runtimeContext: NotRequired[bool]
    depth: NotRequired[int]
    lifecycle: NotRequired[Lifecycle]
    containment: NotRequired[Containment | None]
    hardening: NotRequired[Hardening]
    budget: NotRequired[Budget]
    agentSandbox: NotRequired[AgentSandbox | None]
    explicit: NotRequired[list[ConfigSetting]]
    onUsageLimit: NotRequired[OnUsageLimit]
    notSecret: NotRequired[list[str]]
    homeCopy: NotRequired[list[HomePart]]
    terminal: NotRequired[TerminalConfig | None]
    surface: NotRequired[Surface | None]
    sandbox: NotRequired[SessionSandbox]
    workspace: NotRequired[WorkspaceKind | None]
    container: NotRequired[SessionContainer]


class Profile(TypedDict):
    """
    Defaults of a session.
    """

    agent: NotRequired[str]
    description: NotRequired[str | None]
    model: NotRequired[str | None]
    model_config: NotRequired[str | None]
    mode: NotRequired[str | None]
    thinking: NotRequired[str | None]
    system_prompt: NotRequired[str | None]
    permissions: NotRequired[ProfilePermissions]
    limits: NotRequired[ProfileLimits]
    timeouts: NotRequired[ProfileTimeouts]
    workspace: NotRequired[WorkspaceKind | None]
    sandbox: NotRequired[ProfileSandbox]
    container: NotRequired[ProfileContainer]
    before_start: NotRequired[str | None]
    after_end: NotRequired[str | None]


class ProfileDescription(TypedDict):
    """
    Profile with its name, as it is listed.
    """

    agent: str
    description: NotRequired[str | None]
    model: NotRequired[str | None]
    model_config: NotRequired[str | None]
    mode: NotRequired[str | None]
    thinking: NotRequired[str | None]
    system_prompt: NotRequired[str | None]
    permissions: NotRequired[ProfilePermissions]
    limits: NotRequired[ProfileLimits]
    timeouts: NotRequired[ProfileTimeouts]
    workspace: NotRequired[WorkspaceKind | None]
    sandbox: NotRequired[ProfileSandbox]
    container: NotRequired[ProfileContainer]
    before_start: NotRequired[str | None]
    after_end: NotRequired[str | None]
    name: str
    computed: bool


class SessionRecord(TypedDict):
    """
    Record of a session. With a state directory it outlives the manager, until the session is deleted.
    """

    sessionId: SessionId
    status: SessionStatus
    reason: EndReason | None
    handedOver: bool
    waitingFor: str | None
    archived: bool
    warm: bool
    config: AgentSessionConfig
    secrets: list[str]
    nativeSessionId: str | None
    nativeSessionFile: str | None
    resumable: bool
    agentTitle: str | None
    currentModel: str | None
    currentMode: str | None
    currentThinking: str | None
    commands: list[SlashCommand] | None
    endpoint: str | None
    home: str | None
    hostExecutionId: str
    proxy: ProcessId | None
    agentProcess: ProcessId | None
    createdAt: str
    updatedAt: str
    heartbeat: str
    turns: int
    messages: int
    usage: Usage
    turnUsage: TurnUsage
    lastOffset: str
    queued: int


class SessionSnapshot(TypedDict):
    """
    Snapshot of a suspended session, from which this manager, or another one that sees the same files, resumes it.
    """

    config: AgentSessionConfig
    nativeSessionId: str
    home: NotRequired[str | None]
    turns: int
    lastOffset: str
    secrets: list[str]
    receipt: NotRequired[Receipt | None]


class SnapshotResume(TypedDict):
    """
    Body of `POST /v1/resume`: a session that another daemon has suspended.
    """

    snapshot: SessionSnapshot
    options: NotRequired[ResumeOptions]
