// Bodies of the API. Generated from docs/openapi.json by generate.mjs.

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /**
         * @description Effect of an abort on processes, besides cancelling the turn.
         * @example leaveProcesses
         */
        AbortPolicy: "leaveProcesses" | "killTurnProcesses";
        /**
         * @description Body of `POST /v1/sessions/{id}/abort`: `{}`, `{"policy":"killTurnProcesses"}`. The answer to the second is a receipt.
         * @example {
         *       "policy": "killTurnProcesses"
         *     }
         */
        AbortRequest: {
            /**
             * @description Effect on processes.
             * @default leaveProcesses
             */
            policy?: components["schemas"]["AbortPolicy"];
        };
        /**
         * @description Instance of an agent's own server.
         * @example {
         *       "id": "permission-1",
         *       "port": null,
         *       "status": "starting",
         *       "sessionId": "s-1",
         *       "idleMs": 0
         *     }
         */
        AgentInstance: {
            /** @description Name: that of its model configuration. */
            id: string;
            /**
             * Format: uint16
             * @description Port on loopback where the agent's server answers; `null` while it does not, or for an agent that is none.
             */
            port: number | null;
            /** @description State of the instance. */
            status: components["schemas"]["InstanceStatus"];
            /** @description Session of the instance. */
            sessionId: components["schemas"]["SessionId"];
            /**
             * Format: uint64
             * @description Milliseconds since somebody asked for it, or it had a turn.
             */
            idleMs: number;
        };
        /**
         * @description The sandbox that an agent puts around its own tools: none of ours. Agents differ in what they have; one that cannot have the one asked for refuses the session.
         * @example readOnly
         */
        AgentSandbox: "readOnly" | "workspaceWrite" | "none";
        /**
         * @description Configuration of a session. Only `agent` is required; in JSON every other field may be left out. `Debug` shows neither arguments, values of variables nor the system prompt.
         *
         *     Start from `new`. There will be more fields: a literal without `..` breaks then.
         * @example {
         *       "agent": "command",
         *       "command": [
         *         "cat"
         *       ]
         *     }
         */
        AgentSessionConfig: {
            /** @description Name of the session; a fresh UUIDv7 by default. */
            sessionId?: components["schemas"]["SessionId"];
            /** @description Id of the agent's catalog row. */
            agent: string;
            /**
             * @description Program and arguments, for agents whose row leaves them open (`command`, `acp`); else added to the row's.
             * @default []
             */
            command?: string[];
            /** @description Label: purpose of the agent (`execution`, `plan`, …). */
            agentType?: string | null;
            /** @description Label: user of the session. */
            userId?: string | null;
            /** @description Label: workspace of the session. */
            workspaceId?: string | null;
            /** @description Working directory, absolute; the host's own by default. */
            cwd?: string | null;
            /** @description Model, in the agent's own spelling. */
            model?: string | null;
            /** @description System prompt. An agent whose protocol has none gets it before the first prompt. */
            systemPrompt?: string | null;
            /**
             * @description Environment of the agent, on top of the manager's base and the catalog row's.
             * @default {}
             */
            env?: components["schemas"]["EnvVars"];
            /**
             * @description Tools the agent may use, in its own spelling; empty means its default.
             * @default []
             */
            tools?: string[];
            /**
             * @description MCP servers passed to the agent.
             * @default []
             */
            mcpServers?: components["schemas"]["McpServer"][];
            /**
             * @description Default answer to permission requests.
             * @default ask
             */
            permissionMode?: components["schemas"]["PermissionMode"];
            /**
             * Format: uint32
             * @description Model replies that the agent may use for one prompt; at least 1. The agent's own option bounds them where it has one. Else they are counted, and the turn is aborted at the first sign of one more. Either way the turn ends with `MaxRequests`.
             */
            maxTurns?: number | null;
            /**
             * Format: uint32
             * @description Prompts that the session takes in all.
             */
            maxPrompts?: number | null;
            /**
             * @description Limits on the session's resources.
             * @default {
             *       "memoryBytes": null,
             *       "processes": null,
             *       "cpuTimeMs": null,
             *       "cpuPercent": null,
             *       "openFiles": null,
             *       "fileSizeBytes": null,
             *       "wallClockMs": null,
             *       "coreDumps": false,
             *       "onLimit": "kill_session"
             *     }
             */
            limits?: components["schemas"]["Limits"];
            /**
             * @description Effect of the agent's exit on its processes.
             * @default kill
             */
            onAgentExit?: components["schemas"]["OnAgentExit"];
            /**
             * @description Effect of the host's death. Detaching needs a state directory.
             * @default kill
             */
            onHostDeath?: components["schemas"]["HostDeath"];
            /**
             * @description Permission rules, which apply before the mode.
             * @default {
             *       "rules": [],
             *       "deadlineMs": null,
             *       "allowAtDeadline": false
             *     }
             */
            permissions?: components["schemas"]["PermissionPolicy"];
            /** @description Profile for the settings left out here: its name in the manager. */
            profile?: string | null;
            /** @description Model configuration (provider, address, key) to use: its name in the manager. */
            modelConfig?: string | null;
            /** @description Mode to work in: `build`, `plan`, or one of the agent's own. */
            mode?: string | null;
            /** @description Thinking level: `off`, `low`, `medium`, `high`, or one of the agent's own. */
            thinking?: string | null;
            /** @description Conversation to continue. */
            resume?: components["schemas"]["ResumeRequest"] | null;
            /**
             * @description True if the agent keeps nothing of the conversation.
             * @default false
             */
            ephemeral?: boolean;
            /** @description Home directory; `null` for an own one if a model configuration is used, else the shared one. */
            home?: components["schemas"]["Home"] | null;
            /** @description Address of a running server to connect to, for an agent that has one; the agent is not started then. */
            endpoint?: string | null;
            /** @description True to emit each line of the agent's own as an event too; `null` for yes if the agent has turns. */
            verbatim?: boolean | null;
            /**
             * @description Clocks of the session.
             * @default {
             *       "startMs": null,
             *       "firstResponseMs": 30000,
             *       "inactivityMs": 120000,
             *       "turnMs": 300000,
             *       "toolMs": 1800000,
             *       "action": "abortTurn",
             *       "silenceMs": 3000,
             *       "silenceRepeatMs": 5000
             *     }
             */
            timeouts?: components["schemas"]["Timeouts"];
            /**
             * @description True if the first prompt names the session to the agent, and forbids it to start itself again.
             * @default false
             */
            runtimeContext?: boolean;
            /**
             * Format: uint32
             * @description Number of sessions around the caller itself: 0 outside any. For a program that an agent may start again.
             * @default 0
             */
            depth?: number;
            /**
             * @description Lifecycle beyond one incarnation of the agent.
             * @default {
             *       "key": null,
             *       "title": null,
             *       "tags": [],
             *       "idleSuspendMs": null,
             *       "resumeOnPrompt": true,
             *       "restart": "never",
             *       "replace": false,
             *       "onMissing": "fail",
             *       "beforeStart": null,
             *       "afterEnd": null
             *     }
             */
            lifecycle?: components["schemas"]["Lifecycle"];
            /** @description Containment layers; `null` for the manager's default. */
            containment?: components["schemas"]["Containment"] | null;
            /**
             * @description Protection of everything else from the session.
             * @default {
             *       "undumpable": true,
             *       "landlock": null
             *     }
             */
            hardening?: components["schemas"]["Hardening"];
            /**
             * @description Budget for the model.
             * @default {
             *       "inputTokens": null,
             *       "outputTokens": null,
             *       "totalTokens": null,
             *       "costUsd": null,
             *       "action": "endTurn"
             *     }
             */
            budget?: components["schemas"]["Budget"];
            /** @description The agent's own sandbox around its tools; `null` for what its user has set, else the strongest that lets it work in its directory. */
            agentSandbox?: components["schemas"]["AgentSandbox"] | null;
            /**
             * @description Settings that are meant although they are the default: a profile does not change them. For a command line.
             * @default []
             */
            explicit?: components["schemas"]["ConfigSetting"][];
            /**
             * @description Action for a turn that meets the account's usage limit.
             * @default fail
             */
            onUsageLimit?: components["schemas"]["OnUsageLimit"];
            /**
             * @description Names of values that are no secrets, as in `secrets`: records keep them, and a resume in a later manager needs them not again.
             * @default []
             */
            notSecret?: string[];
            /**
             * @description Parts of the user's home that the session's own home begins with. With some the home is an own one, unless `home` says otherwise, which is an error then.
             * @default []
             */
            homeCopy?: components["schemas"]["HomePart"][];
            /** @description Terminal to start the agent in; without one its standard streams are pipes. */
            terminal?: components["schemas"]["TerminalConfig"] | null;
            /**
             * @description Ways to drive the session; `null` for what `terminal` says. `both` is refused for an agent whose screen and protocol exclude each other, unless `terminal` is given: then the session has the terminal alone.
             * @default null
             */
            surface?: components["schemas"]["Surface"] | null;
            /**
             * @description Files that the session's processes may use. With some mode but `off` the containment is strict.
             * @default {
             *       "mode": null,
             *       "read": [],
             *       "write": [],
             *       "network": null
             *     }
             */
            sandbox?: components["schemas"]["SessionSandbox"];
            /**
             * @description Tree that the agent works in; `null` for the profile's, and `off` without one. In another than `off` it works in a place of its own, and nothing in `cwd` changes until the changes are applied.
             * @default null
             */
            workspace?: components["schemas"]["WorkspaceKind"] | null;
            /**
             * @description Container that the agent runs in. It takes the place of `sandbox`, and of a containment stronger than the baseline.
             * @default {
             *       "image": null,
             *       "engine": null,
             *       "mounts": []
             *     }
             */
            container?: components["schemas"]["SessionContainer"];
        };
        /**
         * @description Capabilities stated in the catalog row; `null` where it states none.
         * @example {
         *       "mcp": true,
         *       "sessionResume": true,
         *       "shell": true,
         *       "workspaceOnly": null
         *     }
         */
        AgentSupport: {
            /** @description It takes MCP servers. */
            mcp: boolean | null;
            /** @description Its conversations can be resumed. */
            sessionResume: boolean | null;
            /** @description It runs commands. */
            shell: boolean | null;
            /** @description It stays in its workspace. */
            workspaceOnly: boolean | null;
        };
        /**
         * @description Answer of an agent to one prompt.
         * @example {
         *       "reply": "42\n",
         *       "sessionId": "s-1",
         *       "turn": 1,
         *       "toolCalls": [
         *         {
         *           "id": "call-1",
         *           "name": "Bash",
         *           "input": {
         *             "command": "ls"
         *           },
         *           "output": "README.md\n",
         *           "state": "completed"
         *         }
         *       ],
         *       "usage": {
         *         "inputTokens": 1200,
         *         "outputTokens": 340,
         *         "cachedInputTokens": null,
         *         "cacheReadTokens": null,
         *         "cacheWriteTokens": null,
         *         "costUsd": 0.25,
         *         "costSource": null
         *       },
         *       "stopReason": null,
         *       "timedOut": null,
         *       "overBudget": null,
         *       "unanswered": [],
         *       "missedEvents": 0,
         *       "cutBytes": 0,
         *       "handlerStopped": null,
         *       "receipt": {
         *         "sessionId": "s-1",
         *         "cause": "killSession",
         *         "processes": [
         *           {
         *             "id": {
         *               "pid": 4711,
         *               "startTime": 2471739
         *             },
         *             "ppid": 4710,
         *             "pgid": 4711,
         *             "sid": 4711,
         *             "command": "sleep 500",
         *             "outcome": {
         *               "ended": {
         *                 "code": 0
         *               }
         *             }
         *           }
         *         ],
         *         "layers": [
         *           "baseline"
         *         ],
         *         "rounds": 2,
         *         "durationUs": 13950,
         *         "unattributed": [],
         *         "survivors": [],
         *         "omitted": 0,
         *         "proof": "noChildren",
         *         "cgroupEmpty": true,
         *         "unmarked": true
         *       }
         *     }
         */
        Answer: {
            /** @description Full text of the turn; text before a tool call is a paragraph of its own. */
            reply: string;
            /** @description The session. It has ended if `receipt` is present. */
            sessionId: components["schemas"]["SessionId"];
            /**
             * Format: uint64
             * @description Number of the turn in the session.
             */
            turn: number;
            /** @description Tool calls, in the order in which they began. */
            toolCalls: components["schemas"]["ToolCall"][];
            /** @description Tokens and cost of the turn, as far as the agent reports them. */
            usage: components["schemas"]["Usage"] | null;
            /** @description Reason for the turn's end; `null` if the agent gave none. */
            stopReason: components["schemas"]["StopReason"] | null;
            /** @description The clock that ran out, if that ended the turn. */
            timedOut: components["schemas"]["TimeoutKind"] | null;
            /** @description The budget that was used up, if that ended the turn. */
            overBudget: components["schemas"]["BudgetKind"] | null;
            /** @description Titles of permission requests that `unanswered` answered. */
            unanswered: string[];
            /**
             * Format: uint64
             * @description Number of session events lost before they were read here; if not 0, text may be missing.
             */
            missedEvents: number;
            /**
             * Format: uint64
             * @description Bytes left out because the answer was too long (`longest`).
             */
            cutBytes: number;
            /** @description Reason why the handler was no longer called, if it was stopped. */
            handlerStopped: string | null;
            /** @description Proof that nothing is left of a session that was started for this question, and ended with it. */
            receipt: components["schemas"]["Receipt"] | null;
        };
        /**
         * @description Body of `POST /v1/sessions/{id}/events`: an event to append.
         * @example {
         *       "type": "slack:received",
         *       "payload": {
         *         "text": "hello"
         *       }
         *     }
         */
        AppendRequest: {
            /** @description Type of the event: `slack:webhook-received`, `agent:action:prompt:called`, … */
            type: string;
            /**
             * Format: uint32
             * @description Version of the payload's shape; 1 by default.
             * @default 1
             */
            version?: number;
            /**
             * @description Any JSON; `null` by default.
             * @default null
             */
            payload?: unknown;
            /** @description Metadata of the caller's, such as correlation ids, which come back to every reader: a JSON object of at most 16 KiB, without the member `turn`. */
            metadata?: {
                [key: string]: unknown;
            } | null;
        };
        /**
         * @description Answer to an append.
         * @example {
         *       "offset": "00000000000000000007"
         *     }
         */
        AppendResponse: {
            /** @description Offset of the event: 20 decimal digits, as in events. */
            offset: string;
        };
        /**
         * @description Answer to `GET /v1/sessions/{id}/attach-command` and `POST …/hand-over`.
         * @example {
         *       "command": [
         *         "text"
         *       ],
         *       "cwd": "/home/ada/project",
         *       "home": null
         *     }
         */
        AttachCommandResponse: {
            /** @description Program and arguments. */
            command: string[];
            /** @description Working directory for the command. */
            cwd: string;
            /** @description Required value of HOME; `null` to leave it unchanged. */
            home: string | null;
        };
        /**
         * @description Bounds on all turns of a session together, as its agent counts. Agents report at the end of a turn, and some also during it (after each request to the model): a turn can exceed a budget by its usage up to that report.
         *
         *     Input counts all tokens read, those from a cache too. `cost_usd` is for agents that report a cost.
         * @example {
         *       "inputTokens": 1200,
         *       "outputTokens": 340,
         *       "costUsd": 0.25,
         *       "action": "warn"
         *     }
         */
        Budget: {
            /**
             * Format: uint64
             * @description Tokens read.
             * @default null
             */
            inputTokens?: number | null;
            /**
             * Format: uint64
             * @description Tokens written.
             * @default null
             */
            outputTokens?: number | null;
            /**
             * Format: uint64
             * @description Tokens read and written.
             * @default null
             */
            totalTokens?: number | null;
            /**
             * @description Cost in US dollars.
             * @default null
             */
            costUsd?: number | null;
            /**
             * @description Action when one of these is used up.
             * @default endTurn
             */
            action?: components["schemas"]["BudgetAction"];
        };
        /**
         * @description Action when a budget is used up. Each emits the event.
         * @example warn
         */
        BudgetAction: "warn" | "refusePrompts" | "endTurn" | "endSession";
        /**
         * @description Part of a `Budget`, with its unit.
         * @example inputTokens
         */
        BudgetKind: "inputTokens" | "outputTokens" | "totalTokens" | "cost";
        /**
         * @description Changed file of a workspace.
         * @example {
         *       "path": "/home/ada/project/notes.md",
         *       "change": "created",
         *       "movedFrom": null
         *     }
         */
        ChangedFile: {
            /** @description Path in the tree. */
            path: string;
            /** @description Kind of the change. */
            change: components["schemas"]["FileChange"];
            /** @description Path before a move. */
            movedFrom: string | null;
        };
        /**
         * @description Result of a check.
         * @example ok
         */
        CheckVerdict: "ok" | "note" | "missing";
        /**
         * @description Setting of an `AgentSessionConfig` with a default other than nothing, which a profile may set.
         * @example permissionMode
         * @enum {string}
         */
        ConfigSetting: "permissionMode" | "onLimit" | "startMs" | "firstResponseMs" | "inactivityMs" | "turnMs" | "toolMs" | "silenceMs" | "silenceRepeatMs" | "action";
        /**
         * @description Program that runs containers.
         * @example podman
         */
        ContainerEngine: "podman" | "docker";
        /**
         * @description Removal of a session's container, in a receipt.
         * @example {
         *       "name": "main",
         *       "isRemoved": false
         *     }
         */
        ContainerRemoval: {
            /** @description Name of the container. */
            name: string;
            /** @description True if the engine has confirmed that there is no such container any more, and no mount of it. */
            isRemoved: boolean;
            /** @description What the engine said, where it has not. */
            failure?: string | null;
        };
        /**
         * @description Container in force, as reported in `session:started`.
         * @example {
         *       "engine": "podman",
         *       "image": "text",
         *       "name": "main",
         *       "mounts": [
         *         {
         *           "source": "text",
         *           "target": "text"
         *         }
         *       ],
         *       "networkOff": false
         *     }
         */
        ContainerStatus: {
            /** @description Engine that runs it. */
            engine: components["schemas"]["ContainerEngine"];
            /** @description Image. */
            image: string;
            /** @description Name of the container. */
            name: string;
            /** @description All mounts. */
            mounts: components["schemas"]["SessionMount"][];
            /** @description True if it has no network but its own loopback; else it has what the engine gives. */
            networkOff: boolean;
        };
        /**
         * @description Layers that contain a session. A session whose requested layer is not available is refused.
         * @example auto
         */
        Containment: "auto" | "baseline" | "cgroup" | "strict";
        /**
         * @description Layer that contains a session's processes.
         * @example baseline
         */
        ContainmentLayer: "baseline" | "cgroup" | "strict";
        /**
         * @description Measures in force for a session, as reported in its `session:started`.
         * @example {
         *       "layers": [
         *         "baseline"
         *       ],
         *       "observer": "connector",
         *       "limits": [
         *         {
         *           "limit": "memory",
         *           "value": 2147483648,
         *           "form": "cgroup"
         *         }
         *       ],
         *       "undumpable": true,
         *       "landlock": true,
         *       "ownCgroupsOnly": true,
         *       "agentSandbox": null,
         *       "sandbox": null,
         *       "container": null
         *     }
         */
        ContainmentStatus: {
            /** @description Layers of containment. */
            layers: components["schemas"]["ContainmentLayer"][];
            /** @description Observer of its processes. */
            observer: components["schemas"]["ObserverKind"];
            /** @description Limits, each with its form of enforcement. */
            limits: components["schemas"]["LimitInForce"][];
            /** @description True if the proxy is not dumpable. */
            undumpable: boolean;
            /** @description True if the agent is in a landlock domain. */
            landlock: boolean;
            /** @description True if the agent sees no writable cgroup file but those of its session's group. */
            ownCgroupsOnly: boolean;
            /** @description The sandbox of the agent's own around its tools: `none`, `read-only`, `workspace-write`, or a word of the agent's; `null` where that is not known. */
            agentSandbox: string | null;
            /**
             * @description The session's sandbox; `null` without one.
             * @default null
             */
            sandbox: components["schemas"]["SandboxStatus"] | null;
            /**
             * @description The agent's container; `null` without one.
             * @default null
             */
            container: components["schemas"]["ContainerStatus"] | null;
        };
        /**
         * @description Source of a cost.
         * @example agent
         */
        CostSource: "agent" | "prices";
        /**
         * @description The daemon's own part of `GET /v1/health`.
         * @example {
         *       "startedAt": "2026-01-02T03:04:05.678Z",
         *       "socket": "/run/user/1000/agent-proxy/daemon.sock",
         *       "addresses": [
         *         "http://127.0.0.1:8480"
         *       ],
         *       "stateDir": "/var/lib/agent-proxy",
         *       "logFile": null,
         *       "node": null
         *     }
         */
        DaemonDescription: {
            /**
             * Format: date-time
             * @description Time of its start.
             */
            startedAt: string;
            /** @description Its local socket. */
            socket: string;
            /** @description Addresses that it answers on, as URLs. */
            addresses: string[];
            /** @description State directory; `null` without one. */
            stateDir: string | null;
            /** @description Log file; `null` where it logs on standard error. */
            logFile: string | null;
            /**
             * @description Name of the node that it is of a fleet; `null` without one.
             * @default null
             */
            node: string | null;
        };
        /**
         * @description Check of one feature.
         * @example {
         *       "name": "main",
         *       "verdict": "ok",
         *       "needed": false,
         *       "found": "text",
         *       "advice": null
         *     }
         */
        DoctorCheck: {
            /** @description Name of the feature. */
            name: string;
            /** @description Result of the check. */
            verdict: components["schemas"]["CheckVerdict"];
            /** @description True if no session can run without the feature. */
            needed: boolean;
            /** @description Finding of the check. */
            found: string;
            /** @description Advice, if there is any. */
            advice: string | null;
        };
        /**
         * @description What became of the sessions of a node that was drained.
         * @example {
         *       "moved": [
         *         {
         *           "sessionId": "s-1",
         *           "from": "text",
         *           "to": "text",
         *           "epoch": 0,
         *           "problem": null
         *         }
         *       ],
         *       "stay": [
         *         {
         *           "sessionId": "s-1",
         *           "reason": "text"
         *         }
         *       ]
         *     }
         */
        DrainedNode: {
            /** @description Sessions that have moved. */
            moved: components["schemas"]["MovedSession"][];
            /** @description Sessions that stay, with the reason of each. */
            stay: components["schemas"]["StayingSession"][];
        };
        /**
         * @description Reason for the end of a session.
         * @example killed
         */
        EndReason: "killed" | {
            agentExited: components["schemas"]["ExitStatus"] | null;
        } | {
            failed: string;
        } | {
            proxyDied: components["schemas"]["ExitStatus"] | null;
        } | "forkServerDied" | "hostDied" | {
            limitExceeded: components["schemas"]["LimitKind"];
        } | {
            timedOut: components["schemas"]["TimeoutKind"];
        } | "shutdown" | {
            budgetExceeded: components["schemas"]["BudgetKind"];
        } | {
            /** Format: uint32 */
            unresponsive: number;
        } | "suspended";
        /**
         * @description Environment variables. `Debug` shows names only: values are often secrets.
         * @example {
         *       "LANG": "C.UTF-8"
         *     }
         */
        EnvVars: {
            [key: string]: string;
        };
        /**
         * @description Event with its position in a session's stream. A new release may add types, and members to payloads.
         * @example {
         *       "offset": "00000000000000000007",
         *       "position": "00000000000000000042",
         *       "type": "stream:text",
         *       "version": 1,
         *       "createdAt": "2026-01-02T03:04:05.678Z",
         *       "eventStreamId": "s-1",
         *       "payload": {
         *         "text": "hi"
         *       }
         *     }
         */
        Envelope: {
            /** @description Position in the session's stream: 1, 2, 3, … */
            offset: string;
            /** @description Place among the events of all sessions; absent where one session is read. */
            position?: string;
            /** @description Type of the event. */
            type: string;
            /** @description Version of the payload's shape. */
            version: number;
            /**
             * Format: date-time
             * @description Time of the append.
             */
            createdAt: string;
            eventStreamId: components["schemas"]["SessionId"];
            /** @description Content, by type. */
            payload: unknown;
            /** @description The turn, and what the caller gave with the append or the prompt. */
            metadata?: {
                /** @description Number of the turn; absent outside of turns. */
                turn?: number;
                /**
                 * @description Present for what happened on the agent's own screen.
                 * @constant
                 */
                surface?: "terminal";
            };
        };
        /**
         * @description Way in which a process has left the agent that started it.
         * @example leftGroup
         */
        EscapeMark: "leftGroup" | "leftSession" | "reParented";
        /**
         * @description Answer to `GET /v1/sessions/{id}/events` and `GET /v1/events` with `Accept: application/json`.
         * @example {
         *       "events": [
         *         {
         *           "offset": "00000000000000000007",
         *           "position": "00000000000000000042",
         *           "type": "stream:text",
         *           "version": 1,
         *           "createdAt": "2026-01-02T03:04:05.678Z",
         *           "eventStreamId": "s-1",
         *           "payload": {
         *             "text": "hi"
         *           }
         *         }
         *       ],
         *       "next": "00000000000000000010",
         *       "more": false
         *     }
         */
        EventPage: {
            /** @description Events, as each line of the stream has one. */
            events: components["schemas"]["Envelope"][];
            /** @description Offset, or position among those of all sessions, to give as `from` for the next page: 20 decimal digits. */
            next: string;
            /** @description True if there are more now. */
            more: boolean;
        };
        /**
         * @description End of a process.
         * @example {
         *       "code": 0
         *     }
         */
        ExitStatus: {
            /** Format: int32 */
            code: number;
        } | {
            /** Format: int32 */
            signal: number;
        };
        /**
         * @description Kind of a file's change.
         * @example created
         * @enum {string}
         */
        FileChange: "created" | "modified" | "deleted" | "moved";
        /**
         * @description Node of the fleet.
         * @example {
         *       "node": "text",
         *       "incarnation": "text",
         *       "version": "text",
         *       "addresses": [
         *         "text"
         *       ],
         *       "labels": {},
         *       "capacity": null,
         *       "sessions": 2,
         *       "agents": [
         *         "text"
         *       ],
         *       "takesOver": false,
         *       "draining": false,
         *       "layers": [
         *         "text"
         *       ],
         *       "backlog": 0,
         *       "presence": "alive",
         *       "silentSeconds": 0,
         *       "isSelf": false
         *     }
         */
        FleetNode: {
            /** @description Name of the node. */
            node: components["schemas"]["NodeName"];
            /** @description One run of its program. */
            incarnation: string;
            /** @description Place of its sessions, which one program has at a time. */
            identity?: string | null;
            /** @description Version of its program. */
            version: string;
            /** @description Addresses at which its API is reached directly, as in `https://10.0.0.7:8480`; none without `--listen`. */
            addresses: string[];
            /** @description Labels, for placement. */
            labels: {
                [key: string]: string;
            };
            /**
             * Format: uint32
             * @description Sessions that it may have at once; `null` for any number.
             */
            capacity: number | null;
            /**
             * Format: uint32
             * @description Sessions that it has now: those that run or start.
             */
            sessions: number;
            /** @description Catalog ids of the agents of which it can start a session. */
            agents: string[];
            /**
             * @description True if its sessions end before its lease does, so that others may go on with them.
             * @default false
             */
            takesOver: boolean;
            /** @description True if it takes no new sessions. */
            draining: boolean;
            /**
             * @description Layers of containment that its machine can do.
             * @default []
             */
            layers: string[];
            /**
             * Format: uint64
             * @description Events of its sessions that the fleet's log did not have at its last beat.
             * @default 0
             */
            backlog: number;
            /** @description Whether it is there. */
            presence: components["schemas"]["NodePresence"];
            /**
             * Format: uint64
             * @description Seconds since the last beat came in at the node that was asked.
             */
            silentSeconds: number;
            /** @description True for the node that was asked. */
            isSelf: boolean;
        };
        /**
         * @description Session of a fleet, and who has it.
         * @example {
         *       "sessionId": "s-1",
         *       "node": "text",
         *       "presence": null,
         *       "silentSeconds": null,
         *       "epoch": 0,
         *       "phase": "running",
         *       "agent": "acp",
         *       "labels": {},
         *       "userId": "ada",
         *       "snapshot": null,
         *       "kill": null
         *     }
         */
        FleetSession: {
            /** @description Id of the session. */
            sessionId: components["schemas"]["SessionId"];
            /** @description Node that has it. */
            node: components["schemas"]["NodeName"];
            /** @description Whether that node is there; `null` for one that this node has not seen since it joined. */
            presence: components["schemas"]["NodePresence"] | null;
            /**
             * Format: uint64
             * @description Seconds since that node's last beat.
             */
            silentSeconds: number | null;
            /**
             * Format: uint64
             * @description Number of times that the session changed hands, with its start.
             */
            epoch: number;
            /** @description Whether it runs, as its node told last. */
            phase: components["schemas"]["SessionPhase"];
            /** @description Catalog id of its agent, once that is known. */
            agent: string | null;
            /** @description Labels that its node has to have. */
            labels: {
                [key: string]: string;
            };
            /** @description User label. */
            userId: string | null;
            /** @description Object with its conversation, where another node can go on with it. */
            snapshot: string | null;
            /** @description Kill that was asked for while the node was silent. */
            kill: components["schemas"]["RememberedKill"] | null;
        };
        /**
         * @description Answer to `POST /v1/fleet/nodes/{node}/forget`.
         * @example {
         *       "sessions": [
         *         "s-1"
         *       ]
         *     }
         */
        ForgottenNode: {
            /** @description Sessions of which the fleet has nothing any more. */
            sessions: components["schemas"]["SessionId"][];
        };
        /**
         * @description Stream without a session, as it is listed.
         * @example {
         *       "eventStreamId": "s-1",
         *       "lastOffset": "00000000000000000013"
         *     }
         */
        FreeStreamInfo: {
            /** @description Id of the stream: that of the session that may have it. */
            eventStreamId: components["schemas"]["SessionId"];
            /** @description Offset of its last event. 20 decimal digits in JSON. */
            lastOffset: string;
        };
        /**
         * @description Protection of the supervisors, and of other sessions, from a session's processes.
         * @example {
         *       "undumpable": true,
         *       "landlock": true
         *     }
         */
        Hardening: {
            /**
             * @description Makes the proxy undumpable: a process of the same user can neither ptrace it nor read its memory, environment and descriptors. On by default.
             * @default true
             */
            undumpable?: boolean;
            /**
             * @description Puts the agent into a landlock domain: it can neither signal nor ptrace anything outside its session, nor reach abstract sockets there. On by default for root. For others it needs `no_new_privs`, which disables sudo, so it must be requested. `true` refuses the session if the kernel lacks that scope.
             * @default null
             */
            landlock?: boolean | null;
        };
        /**
         * @description Answer to `GET /v1/health`.
         * @example {
         *       "version": "text",
         *       "pid": 4711,
         *       "forkServer": {
         *         "pid": 4711,
         *         "startTime": 2471739
         *       },
         *       "sessions": 2,
         *       "waiting": 0,
         *       "damaged": [],
         *       "degraded": [],
         *       "daemon": null
         *     }
         */
        HealthResponse: {
            /** @description Version of the daemon. */
            version: string;
            /**
             * Format: uint32
             * @description Pid of the daemon.
             */
            pid: number;
            /** @description Process of its fork server. */
            forkServer: components["schemas"]["ProcessId"];
            /**
             * Format: uint
             * @description Sessions that have not ended.
             */
            sessions: number;
            /**
             * Format: uint
             * @description Starts that wait for a free slot.
             * @default 0
             */
            waiting: number;
            /**
             * @description Damaged parts of the event log, a line each: the daemon goes on with the rest.
             * @default []
             */
            damaged: string[];
            /**
             * @description Failures that the daemon has now, each with its cause. Empty if all is well.
             * @default []
             */
            degraded: string[];
            /**
             * @description The program around the router, where it describes itself.
             * @default null
             */
            daemon: components["schemas"]["DaemonDescription"] | null;
        };
        /**
         * @description Line of the answer to `GET /v1/sessions/{id}/hold`: `{"held":true}` at once, and last `{"held":false}`.
         * @example {
         *       "held": false
         *     }
         */
        HoldLine: {
            /** @description False once the session has ended: there is nothing left to hold. */
            held: boolean;
        };
        /**
         * @description Home directory of the agent.
         * @example shared
         */
        Home: "shared" | "own";
        /**
         * @description Part of the user's home: `login`, `skills`, or a path below the home.
         * @example login
         */
        HomePart: string;
        /**
         * @description Action for a session whose host dies.
         * @example {
         *       "detach": {
         *         "fetchWithinMs": 86400000,
         *         "spoolBytes": 67108864
         *       }
         *     }
         */
        HostDeath: "kill" | {
            detach: {
                /**
                 * Format: uint64
                 * @description Longest wait, in milliseconds; the session ends itself then. 24 hours by default.
                 * @default 86400000
                 */
                fetchWithinMs?: number;
                /**
                 * Format: uint64
                 * @description Bytes of messages kept for the next host. Further ones are counted, and lost. 64 MiB by default.
                 * @default 67108864
                 */
                spoolBytes?: number;
            };
        };
        /**
         * @description Body of `POST /v1/import`.
         * @example {
         *       "path": "/home/ada/project/notes.md"
         *     }
         */
        ImportRequest: {
            /** @description Absolute path of a file of JSON lines that the daemon can read. */
            path: string;
        };
        /**
         * @description Answer to an import; offsets are 20 decimal digits.
         * @example {
         *       "sessionId": "s-1",
         *       "first": "00000000000000000001",
         *       "last": "00000000000000000024"
         *     }
         */
        ImportResponse: {
            /** @description Session of the events. */
            sessionId: components["schemas"]["SessionId"];
            /** @description Offset of the first. */
            first: string;
            /** @description Offset of the last. */
            last: string;
        };
        /**
         * @description Agent of the catalog, with the results of its discovery.
         * @example {
         *       "id": "permission-1",
         *       "title": "Login page",
         *       "description": "Any program.",
         *       "enabled": true,
         *       "protocol": "acp",
         *       "anyProgram": true,
         *       "usable": true,
         *       "found": true,
         *       "path": "/home/ada/project/notes.md",
         *       "version": null,
         *       "tried": [
         *         "example 1.2.3"
         *       ],
         *       "untried": null,
         *       "missing": [],
         *       "install": "npm install --global example",
         *       "files": [],
         *       "mcpConfigFiles": [
         *         "text"
         *       ],
         *       "defaultModel": null,
         *       "capabilities": [
         *         "shell_execution"
         *       ],
         *       "supports": {
         *         "mcp": true,
         *         "sessionResume": true,
         *         "shell": true,
         *         "workspaceOnly": null
         *       }
         *     }
         */
        InstalledAgent: {
            /** @description Catalog id. */
            id: string;
            /** @description Title for people. */
            title: string;
            /** @description Description for people. */
            description: string;
            /** @description False if it is not to be used. */
            enabled: boolean;
            /** @description Protocol that it speaks. */
            protocol: string;
            /** @description True if it runs any program, which the session's command names. */
            anyProgram: boolean;
            /** @description True if a session of it can be started. */
            usable: boolean;
            /** @description True if its program was found. */
            found: boolean;
            /** @description Path of the program. */
            path: string | null;
            /** @description Version, if it is known. */
            version: string | null;
            /** @description The versions that its row was tried with. */
            tried: string[];
            /** @description Warning about a version that was not tried; `null` for one that was, or that is not known. */
            untried: string | null;
            /** @description Requirements that the agent cannot start without. */
            missing: string[];
            /** @description Command that installs it. */
            install: string | null;
            /** @description Files that show that it is set up. */
            files: string[];
            /** @description Files with its configured MCP servers. */
            mcpConfigFiles: string[];
            /** @description Default model. */
            defaultModel: string | null;
            /** @description Capabilities that its row names. */
            capabilities: string[];
            /** @description Capabilities that its row states or denies. */
            supports: components["schemas"]["AgentSupport"];
        };
        /**
         * @description State of an instance.
         * @example starting
         */
        InstanceStatus: "starting" | "ready" | "stopped";
        /**
         * @description Wish of a viewer for the keyboard. One viewer at a time has it.
         * @example watch
         */
        KeyboardWish: "watch" | "type" | "take";
        /**
         * @description Cause of a kill.
         * @example killSession
         */
        KillCause: "killSession" | "killAll" | "killProcess" | "agentExit" | "failed" | "shutdown" | "suspend" | "hostDied" | "proxyDied" | "forkServerDied" | "abortTurn" | "limit" | "recovery" | "lease";
        /**
         * @description Body of `POST /v1/sessions/{id}/kill`.
         * @example {
         *       "graceMs": 500
         *     }
         */
        KillRequest: {
            /**
             * Format: uint32
             * @description Only this process, or `null` for the session.
             * @default null
             */
            pid?: number | null;
            /**
             * @description True to kill everything below `pid` too.
             * @default false
             */
            tree?: boolean;
            /**
             * @description True to kill only processes that the agent started; the agent and the session continue.
             * @default false
             */
            keepAgent?: boolean;
            /**
             * Format: uint64
             * @description Milliseconds between SIGTERM and SIGKILL; 2000 by default, 0 sends SIGKILL at once.
             * @default null
             */
            graceMs?: number | null;
        };
        /**
         * @description Lifecycle of a session beyond one incarnation of its agent.
         * @example {
         *       "key": "stored",
         *       "title": "Login page",
         *       "tags": [
         *         "web"
         *       ],
         *       "restart": "never",
         *       "onMissing": "fail"
         *     }
         */
        Lifecycle: {
            /**
             * @description Caller's name for the conversation (a chat's id): a start with the key of a suspended session continues that one.
             * @default null
             */
            key?: string | null;
            /**
             * @description Title for people.
             * @default null
             */
            title?: string | null;
            /**
             * @description Labels for searches.
             * @default []
             */
            tags?: string[];
            /**
             * Format: uint64
             * @description Idle time after which the session is suspended, in milliseconds; 0 for never, `null` for the manager's default (300 seconds with a state directory).
             * @default null
             */
            idleSuspendMs?: number | null;
            /**
             * @description True if a prompt resumes the suspended session.
             * @default true
             */
            resumeOnPrompt?: boolean;
            /**
             * @description Policy for restarts after its agent or its proxy dies.
             * @default never
             */
            restart?: components["schemas"]["Restart"];
            /**
             * @description True to delete an ended session with the same id first. Of this start alone: no record keeps it.
             * @default false
             */
            replace?: boolean;
            /**
             * @description Fallback if the session with this key has lost its conversation. Of this start alone: no record keeps it.
             * @default fail
             */
            onMissing?: components["schemas"]["ResumeFallback"];
            /**
             * @description Shell command that runs before the session's first start; the agent starts only if it exits with 0. No place for a secret: records keep it.
             * @default null
             */
            beforeStart?: string | null;
            /**
             * @description Shell command that runs when the session has ended and nothing of it is left, also after a failed start or a crash of the host. The session's record has it until it has run.
             * @default null
             */
            afterEnd?: string | null;
        };
        /**
         * @description Action when a limit is passed.
         * @example warn
         */
        LimitAction: "warn" | "kill_process" | "kill_session";
        /**
         * @description Enforcement of a limit, the strongest first.
         * @example cgroup
         */
        LimitForm: "cgroup" | "rlimit" | "clock" | "watchdog";
        /**
         * @description Limit, with its enforcement.
         * @example {
         *       "limit": "memory",
         *       "value": 2147483648,
         *       "form": "cgroup"
         *     }
         */
        LimitInForce: {
            /** @description Limited resource. */
            limit: components["schemas"]["LimitKind"];
            /**
             * Format: uint64
             * @description Allowed value, in the unit of its kind.
             */
            value: number;
            /** @description Way of enforcing the limit. */
            form: components["schemas"]["LimitForm"];
        };
        /**
         * @description Limited resource, with its unit.
         * @example memory
         */
        LimitKind: "memory" | "processes" | "cpuTime" | "cpuPercent" | "openFiles" | "fileSize" | "wallClock";
        /**
         * @description Limits of a session: none by default, except that core dumps are off.
         * @example {
         *       "memoryBytes": 2147483648,
         *       "wallClockMs": 3600000,
         *       "onLimit": "kill_session"
         *     }
         */
        Limits: {
            /**
             * Format: uint64
             * @description Memory of all its processes together, in bytes (private memory: resident, less shared pages; memory that a fork shares with its parent counts in both). If a cgroup enforces it, the kernel counts, page cache included.
             * @default null
             */
            memoryBytes?: number | null;
            /**
             * Format: uint64
             * @description Processes alive at once, the agent included. Threads do not count, unless a cgroup enforces the limit: the kernel counts them too.
             * @default null
             */
            processes?: number | null;
            /**
             * Format: uint64
             * @description CPU time of all its processes together, in milliseconds.
             * @default null
             */
            cpuTimeMs?: number | null;
            /**
             * Format: uint64
             * @description CPU of all its processes together, in percent of one core, over at least a second. If a cgroup enforces it, they are held at the limit, and the limit counts as passed when they want more for a second.
             * @default null
             */
            cpuPercent?: number | null;
            /**
             * Format: uint64
             * @description Descriptors that one process may have open. The kernel refuses the next one (EMFILE), whatever the action is; a process at the limit counts as having passed it. A process that is there only for a moment (less than 50 ms) can be missed: then there is neither an event nor an action.
             * @default null
             */
            openFiles?: number | null;
            /**
             * Format: uint64
             * @description Bytes that one file may grow to. Unless the action is `warn` the kernel stops the write there, and ends a process that continues with SIGXFSZ. Without the proc connector that end can be missed, if the process has another parent than the proxy and lives for less than a polling interval: it is stopped all the same, but there is no event. Nor is there one for a process that ignores SIGXFSZ and closes the file between two polls (10 ms while a turn runs, else 250 ms): it gets EFBIG, and the file does not exceed the limit.
             * @default null
             */
            fileSizeBytes?: number | null;
            /**
             * Format: uint64
             * @description Wall clock since the agent's start, in milliseconds.
             * @default null
             */
            wallClockMs?: number | null;
            /**
             * @description True if a crash may leave a core file. Off by default.
             * @default false
             */
            coreDumps?: boolean;
            /**
             * @description Action when a limit is passed.
             * @default kill_session
             */
            onLimit?: components["schemas"]["LimitAction"];
        };
        /**
         * @description Socket on which a process listens, in its network namespace.
         * @example {
         *       "protocol": "tcp",
         *       "address": "text",
         *       "port": 0
         *     }
         */
        ListeningSocket: {
            /** @description Protocol of the socket. */
            protocol: components["schemas"]["SocketProtocol"];
            /** @description Address, without brackets; `0.0.0.0` and `::` are all of the machine. */
            address: string;
            /**
             * Format: uint16
             * @description Port.
             */
            port: number;
        };
        /**
         * @description Body of `POST /v1/login-links`.
         * @example {
         *       "role": "read"
         *     }
         */
        LoginLinkRequest: {
            /**
             * @description What the page may do; no more than the caller.
             * @default admin
             */
            role?: components["schemas"]["Role"];
            /** @description The one user whose sessions the page shows. */
            user?: string | null;
        };
        /**
         * @description Answer to `POST /v1/login-links`.
         * @example {
         *       "urls": [
         *         "text"
         *       ],
         *       "expiresAt": "text"
         *     }
         */
        LoginLinkResponse: {
            /** @description The link, at each address of the server. It works once. */
            urls: string[];
            /**
             * Format: date-time
             * @description End of its life. RFC 3339 in JSON.
             */
            expiresAt: string;
        };
        /**
         * @description MCP server that the agent may use.
         * @example {
         *       "name": "main",
         *       "transport": {
         *         "stdio": {
         *           "command": "sleep 500",
         *           "args": [
         *             "--stdio"
         *           ],
         *           "env": {
         *             "LANG": "C.UTF-8"
         *           }
         *         }
         *       }
         *     }
         */
        McpServer: {
            /** @description Name under which the agent shows its tools. */
            name: string;
            /** @description Connection to the server. */
            transport: components["schemas"]["McpTransport"];
        };
        /**
         * @description Connection to an MCP server. `Debug` shows neither arguments nor values.
         * @example {
         *       "stdio": {
         *         "command": "sleep 500",
         *         "args": [
         *           "--stdio"
         *         ],
         *         "env": {
         *           "LANG": "C.UTF-8"
         *         }
         *       }
         *     }
         */
        McpTransport: {
            stdio: {
                /** @description Program to start. */
                command: string;
                /** @description Arguments of the program. */
                args: string[];
                /** @description Environment of the program. */
                env: components["schemas"]["EnvVars"];
            };
        } | {
            http: {
                /** @description Address of the server. */
                url: string;
                /** @description Headers of each request; values are hidden in `Debug`. */
                headers: components["schemas"]["EnvVars"];
            };
        };
        /**
         * @description API of a model.
         * @example anthropic-messages
         */
        ModelApi: "anthropic-messages" | "openai-responses" | "openai-chat" | "gemini";
        /**
         * @description Body of `PATCH /v1/models/{name}`: what is given is changed, and `null` removes it.
         * @example {
         *       "provider": "anthropic",
         *       "baseUrl": null,
         *       "model": "example-model"
         *     }
         */
        ModelChange: {
            /**
             * @description Provider: `anthropic`, `openai`, `google`, or any other word.
             * @default null
             */
            provider?: string | null;
            /**
             * @description API of the model.
             * @default null
             */
            api?: components["schemas"]["ModelApi"] | null;
            /**
             * @description Address of the API with its version.
             * @default null
             */
            baseUrl?: string | null;
            /**
             * @description Model in the provider's spelling.
             * @default null
             */
            model?: string | null;
            /** @description Key for the API; it takes the place of a variable or file with the key. */
            key?: components["schemas"]["Secret"] | null;
            /**
             * @description Variable of the server's environment that has the key; it takes the place of a stored key, or of a file.
             * @default null
             */
            keyEnv?: string | null;
        };
        /**
         * @description Model configuration without its key, as it is listed.
         * @example {
         *       "name": "main",
         *       "provider": "anthropic",
         *       "api": "anthropic-messages",
         *       "baseUrl": null,
         *       "model": "example-model",
         *       "key": "stored"
         *     }
         */
        ModelDescription: {
            /** @description Name of the model configuration. */
            name: string;
            /** @description Provider: `anthropic`, `openai`, `google`, or any other word. */
            provider: string;
            /** @description API of the model. */
            api: string;
            /** @description Address of the API; `null` for the provider's own. */
            baseUrl: string | null;
            /** @description Model in the provider's spelling. */
            model: string | null;
            /** @description Place of the key: `none`, `stored`, `$VARIABLE` or a path. */
            key: string;
        };
        /**
         * @description Body of `PUT /v1/models/{name}`: a model configuration. Without `key` and `keyEnv` the stored key stays.
         * @example {
         *       "provider": "anthropic",
         *       "baseUrl": null,
         *       "model": "example-model"
         *     }
         */
        ModelSettings: {
            /** @description Provider: `anthropic`, `openai`, `google`, or any other word. */
            provider: string;
            /**
             * @description API of the model; by default the one of the provider's name, else Chat Completions.
             * @default null
             */
            api?: components["schemas"]["ModelApi"] | null;
            /**
             * @description Address of the API with its version (`https://api.example.com/v1`); the provider's own by default.
             * @default null
             */
            baseUrl?: string | null;
            /**
             * @description Model in the provider's spelling; a session's `model` overrides it.
             * @default null
             */
            model?: string | null;
            /** @description Key for the API. */
            key?: components["schemas"]["Secret"] | null;
            /**
             * @description Variable of the server's environment that has the key.
             * @default null
             */
            keyEnv?: string | null;
        };
        /**
         * @description Body of `POST /v1/fleet/sessions/{id}/move`: `{"to":"b"}`.
         * @example {}
         */
        MoveRequest: {
            /**
             * @description Node that the session goes to; without it one is chosen.
             * @default null
             */
            to?: components["schemas"]["NodeName"] | null;
        };
        /**
         * @description Session that has moved.
         * @example {
         *       "sessionId": "s-1",
         *       "from": "text",
         *       "to": "text",
         *       "epoch": 0,
         *       "problem": null
         *     }
         */
        MovedSession: {
            /** @description Id of the session. */
            sessionId: components["schemas"]["SessionId"];
            /** @description Node that had it. */
            from: components["schemas"]["NodeName"];
            /** @description Node that has it. */
            to: components["schemas"]["NodeName"];
            /**
             * Format: uint64
             * @description Number of times that the session changed hands, with its start.
             */
            epoch: number;
            /** @description Reason why it does not run there yet as it did here, in the answer to a drain; `null` if all is well. */
            problem: string | null;
        };
        /**
         * @description Hosts that a session's processes may reach.
         * @example host
         */
        NetworkAccess: "host" | "off" | {
            allow: components["schemas"]["NetworkRule"][];
        };
        /**
         * @description Allowed host: a name, `*.NAME` for all names below one, or an address; with `:PORT` for a port other than 80 and 443.
         * @example text
         */
        NetworkRule: string;
        /**
         * @description Body of `POST /v1/models`: a model configuration. `key` is written to a file that the server's user alone can read.
         * @example {
         *       "name": "main",
         *       "provider": "anthropic",
         *       "keyEnv": "ANTHROPIC_API_KEY"
         *     }
         */
        NewModel: {
            /** @description Name of the model configuration. */
            name: string;
            /** @description Provider: `anthropic`, `openai`, `google`, or any other word. */
            provider: string;
            /**
             * @description API of the model; by default the one of the provider's name, else Chat Completions.
             * @default null
             */
            api?: components["schemas"]["ModelApi"] | null;
            /**
             * @description Address of the API with its version (`https://api.example.com/v1`); the provider's own by default.
             * @default null
             */
            baseUrl?: string | null;
            /**
             * @description Model in the provider's spelling; a session's `model` overrides it.
             * @default null
             */
            model?: string | null;
            /** @description Key for the API. */
            key?: components["schemas"]["Secret"] | null;
            /**
             * @description Variable of the server's environment that has the key.
             * @default null
             */
            keyEnv?: string | null;
        };
        /**
         * @description Name of a node: 1 to 64 characters of A-Z a-z 0-9 _ -.
         * @example text
         */
        NodeName: string;
        /**
         * @description Whether a node is there.
         * @example alive
         */
        NodePresence: "alive" | "silent" | "left";
        /**
         * @description Observer of a session's processes.
         * @example connector
         */
        ObserverKind: "connector" | "polling";
        /**
         * @description Effect of the agent's exit on the session's other processes.
         * @example kill
         */
        OnAgentExit: "kill" | "keep";
        /**
         * @description What becomes of a session when nobody views its terminal any more.
         * @example keep
         */
        OnDetach: "keep" | "end";
        /**
         * @description Fallback for a session whose conversation cannot be continued.
         * @example fail
         */
        OnMissing: "fail" | "startAnew" | {
            inject: {
                /** @description History as text. */
                history: string;
            };
        };
        /**
         * @description Action for a turn that meets the usage limit of the agent's account (`usage:limited`).
         * @example fail
         */
        OnUsageLimit: "fail" | "wait";
        /**
         * @description Permission request of an agent that nobody has answered yet.
         * @example {
         *       "id": "permission-1",
         *       "title": "Run ls",
         *       "tool": "Bash",
         *       "kind": "execute",
         *       "command": "ls",
         *       "paths": [],
         *       "input": {
         *         "command": "ls"
         *       },
         *       "options": [
         *         {
         *           "id": "once",
         *           "name": "Allow once",
         *           "kind": "allowOnce"
         *         }
         *       ]
         *     }
         */
        OpenPermission: {
            /** @description Id of the request, for its answer. */
            id: string;
            /** @description Title for people, one line. */
            title: string;
            /** @description Machine name of the tool, if the agent gives one; else the kind. */
            tool: string;
            /**
             * @description Kind of action, as in the event.
             * @default
             */
            kind: string;
            /** @description Command line, if the action runs one. */
            command: string | null;
            /**
             * @description Paths that the action would touch, if the agent names them, in the agent's form.
             * @default []
             */
            paths: string[];
            /**
             * @description Details as the agent gave them, such as the text that would be written; `null` if it did not. Of more than 128 KiB the long texts are cut, and say so: the event has all.
             * @default null
             */
            input: unknown;
            /** @description Possible answers. */
            options: components["schemas"]["PermissionOption"][];
        };
        /**
         * @description Operation of the agent itself, answered with JSON. An operation that an agent lacks is `Unsupported`.
         * @example {
         *       "setModel": {
         *         "model": "example-model"
         *       }
         *     }
         */
        Operation: {
            setModel: {
                /** @description Model, in the agent's own spelling. */
                model: string;
            };
        } | {
            setMode: {
                /** @description `build`, `plan`, or one of the agent's own. */
                mode: string;
            };
        } | {
            setThinking: {
                /** @description `off`, `low`, `medium`, `high`, or one of the agent's own. */
                level: string;
            };
        } | "compact" | "getState" | "getMessages" | "listSessions" | {
            native: {
                /** @description Message, without an id of its own if the protocol has ids. */
                message: unknown;
            };
        } | {
            compactWith: {
                /** @description Instructions: what to retain, what to leave out. */
                instructions: string;
            };
        } | "listChoices";
        /**
         * @description Answer to a permission request.
         * @example allow
         */
        PermissionAnswer: "allow" | "deny" | {
            option: string;
        } | {
            allowWith: {
                /** @description Complete input of the tool, in the agent's form. */
                input: unknown;
            };
        } | {
            denyWith: {
                /** @description Reason for the model. */
                message: string;
            };
        } | "cancelled";
        /**
         * @description Answer to an agent's permission requests that no rule decides.
         * @example ask
         */
        PermissionMode: "ask" | "allow" | "deny" | "readOnly";
        /**
         * @description Possible answer to a permission request.
         * @example {
         *       "id": "permission-1",
         *       "name": "main",
         *       "kind": "allowOnce"
         *     }
         */
        PermissionOption: {
            /** @description Agent's id of the option. */
            id: string;
            /** @description Name for people. */
            name: string;
            /** @description Meaning of the option. */
            kind: components["schemas"]["PermissionOptionKind"];
        };
        /**
         * @description Meaning of a permission option. Ids differ from agent to agent: match by kind.
         * @example allowOnce
         * @enum {string}
         */
        PermissionOptionKind: "allowOnce" | "allowAlways" | "rejectOnce" | "rejectAlways" | "other";
        /**
         * @description Answers to a session's permission requests.
         * @example {
         *       "allowAtDeadline": false
         *     }
         */
        PermissionPolicy: {
            /**
             * @description Rules, of which the first that matches decides; if none does, the session's `PermissionMode`.
             * @default []
             */
            rules?: components["schemas"]["PermissionRule"][];
            /**
             * Format: uint64
             * @description Longest wait of a request for an answer, in milliseconds; `null` for no bound.
             * @default null
             */
            deadlineMs?: number | null;
            /**
             * @description True to allow the request at the deadline; else it is rejected.
             * @default false
             */
            allowAtDeadline?: boolean;
        };
        /**
         * @description Body of `POST /v1/sessions/{id}/permissions/{request}`: `{"answer":"allow"}`, `{"answer":{"option":"ID"},"by":"alice"}`.
         * @example {
         *       "answer": "allow",
         *       "by": "ada"
         *     }
         */
        PermissionReply: {
            /** @description Answer to the request. */
            answer: components["schemas"]["PermissionAnswer"];
            /** @description Name of the user who answers, for `permission:resolved`. */
            by?: string | null;
        };
        /**
         * @description Permission rule: all of its given patterns must match. The first rule that matches decides. If a request asks for several things (`fetch+other`), each is decided: the request is denied if one of them is, and allowed if all are.
         *
         *     `*` matches anything within a tool's name or a command; in a path `*` stays within a directory and `**` does not.
         * @example {
         *       "tool": "Bash",
         *       "command": "sleep 500",
         *       "path": "/home/ada/project/notes.md",
         *       "decision": "ask"
         *     }
         */
        PermissionRule: {
            /** @description Glob on the tool's machine name, or on its kind (`execute`, `edit`, `read`, …). */
            tool?: string | null;
            /** @description Glob on the whole command line. A rule that allows never matches a command that a shell would split (`;`, `&&`, `$(`, …), unless the glob has the same. */
            command?: string | null;
            /** @description Glob on the paths, made absolute. A rule that allows must match all of them, any other rule at least one. */
            path?: string | null;
            /** @description Decision if the rule matches. */
            decision: components["schemas"]["RuleDecision"];
        };
        /**
         * @description Problem object. `type` is the kebab-case variant of the library's error.
         * @example {
         *       "type": "unknown-session",
         *       "title": "no such session",
         *       "status": 404,
         *       "detail": "no session s-9: list the sessions to see which there are"
         *     }
         */
        ProblemDetails: {
            /** @description Kind of problem. */
            type: string;
            /** @description Title of the kind, for people. */
            title: string;
            /**
             * Format: uint16
             * @description HTTP status.
             */
            status: number;
            /** @description Operation that was tried, its target, and advice. */
            detail: string;
            /** @description Receipt of the kill, for `survivors`. */
            receipt?: components["schemas"]["Receipt"] | null;
        };
        /**
         * @description Process of a session, with its age, what it has left, and the ports on which it listens.
         * @example {
         *       "id": {
         *         "pid": 4711,
         *         "startTime": 2471739
         *       },
         *       "ppid": 4710,
         *       "pgid": 4711,
         *       "sid": 4711,
         *       "sessionId": "s-1",
         *       "command": "sleep 500",
         *       "args": [
         *         "--stdio"
         *       ],
         *       "cwd": "/home/ada/project",
         *       "startedAt": "2026-01-02T03:04:05.678Z",
         *       "status": "running",
         *       "exit": null,
         *       "error": null,
         *       "cpuPercent": 0,
         *       "rssBytes": 27422720,
         *       "tracked": true,
         *       "ageMs": null,
         *       "marks": [
         *         "leftGroup"
         *       ],
         *       "listening": [
         *         {
         *           "protocol": "tcp",
         *           "address": "text",
         *           "port": 0
         *         }
         *       ]
         *     }
         */
        ProcessDetails: {
            /** @description Identity of the process. */
            id: components["schemas"]["ProcessId"];
            /**
             * Format: uint32
             * @description Pid of the parent; 0 where the parent is outside the PID namespace or gone.
             */
            ppid: number;
            /**
             * Format: uint32
             * @description Process group.
             */
            pgid: number;
            /**
             * Format: uint32
             * @description Session in the POSIX sense (`setsid`), not the agent session.
             */
            sid: number;
            /** @description Agent session that started the process. */
            sessionId: components["schemas"]["SessionId"];
            /** @description First word of the command line, of which at most `MAX_COMMAND_LINE` bytes are kept; `null` where it could not be read (the process was gone, or is a kernel thread). */
            command: string | null;
            /** @description Other words of the command line. */
            args: string[];
            /** @description Working directory; `null` where it could not be read. */
            cwd: string | null;
            /**
             * Format: date-time
             * @description Start time, to the clock tick (10 ms).
             */
            startedAt: string;
            /** @description Running, or the way it ended. */
            status: components["schemas"]["ProcessStatus"];
            /** @description Exit status, where known. */
            exit: components["schemas"]["ExitStatus"] | null;
            /** @description Error of a process that ended badly by itself: its exit code or the signal of its crash, with the last line that the agent wrote to its standard error. `null` for one that was killed on request. (A program that cannot be started is no process: the start of its session fails with the error.) */
            error: string | null;
            /**
             * Format: float
             * @description CPU in percent of one core since the last listing; since the process's start in the first one. `null` where not sampled.
             */
            cpuPercent: number | null;
            /**
             * Format: uint64
             * @description Resident memory in bytes; `null` where not sampled.
             */
            rssBytes: number | null;
            /** @description True if the registry started the process itself; false for a discovered descendant. */
            tracked: boolean;
            /**
             * Format: uint64
             * @description Milliseconds since its start; `null` once it has ended.
             * @default null
             */
            ageMs: number | null;
            /**
             * @description Ways in which it has left the agent that started it.
             * @default []
             */
            marks: components["schemas"]["EscapeMark"][];
            /**
             * @description Sockets on which it listens, at most 256; empty where they cannot be read.
             * @default []
             */
            listening: components["schemas"]["ListeningSocket"][];
        };
        /**
         * @description Permanent identity of a process: a pid alone is recycled, a pid with its start time is not.
         * @example {
         *       "pid": 4711,
         *       "startTime": 2471739
         *     }
         */
        ProcessId: {
            /**
             * Format: uint32
             * @description Pid of the process.
             */
            pid: number;
            /**
             * Format: uint64
             * @description Start time in clock ticks since boot: field 22 of `/proc/PID/stat`.
             */
            startTime: number;
        };
        /**
         * @description End of a process that was alive when the kill began.
         * @example {
         *       "ended": {
         *         "code": 0
         *       }
         *     }
         */
        ProcessOutcome: {
            ended: components["schemas"]["ExitStatus"];
        } | "gone" | "survived";
        /**
         * @description Lifecycle state of a process.
         * @example running
         */
        ProcessStatus: "running" | "completed" | "killed" | "error";
        /**
         * @description Current resource use of a session's processes.
         * @example {
         *       "processes": 2,
         *       "cpuPercent": 0,
         *       "rssBytes": 27422720
         *     }
         */
        ProcessUse: {
            /**
             * Format: uint
             * @description Number of live processes.
             */
            processes: number;
            /**
             * Format: float
             * @description CPU use of all processes since the last listing, in percent of one core.
             */
            cpuPercent: number;
            /**
             * Format: uint64
             * @description Resident memory of all processes in bytes; shared memory counts once for each.
             */
            rssBytes: number;
        };
        /**
         * @description Defaults of a session.
         * @example {
         *       "agent": "command",
         *       "description": "Reviews changes.",
         *       "permissions": {
         *         "mode": "readOnly"
         *       }
         *     }
         */
        Profile: {
            /**
             * @description Id of the agent's catalog row.
             * @default
             */
            agent?: string;
            /** @description Purpose of the profile. */
            description?: string | null;
            /** @description Model, in the agent's own spelling. */
            model?: string | null;
            /** @description Name of the model configuration. */
            model_config?: string | null;
            /** @description Mode to work in. */
            mode?: string | null;
            /** @description Thinking level. */
            thinking?: string | null;
            /** @description System prompt. */
            system_prompt?: string | null;
            /** @description Handling of permission requests. */
            permissions?: components["schemas"]["ProfilePermissions"];
            /** @description Limits of the processes. */
            limits?: components["schemas"]["ProfileLimits"];
            /** @description Clocks of the session. */
            timeouts?: components["schemas"]["ProfileTimeouts"];
            /** @description Tree that the agent works in. */
            workspace?: components["schemas"]["WorkspaceKind"] | null;
            /** @description Files in reach. */
            sandbox?: components["schemas"]["ProfileSandbox"];
            /** @description Container of the agent. */
            container?: components["schemas"]["ProfileContainer"];
            /** @description Shell command before a session's first start, unless the session names one. */
            before_start?: string | null;
            /** @description Shell command after a session's end, unless the session names one. */
            after_end?: string | null;
        };
        /**
         * @description Container of the agent.
         * @example {}
         */
        ProfileContainer: {
            /** @description Image, with or without a tag. */
            image?: string | null;
            /** @description Engine. */
            engine?: components["schemas"]["ContainerEngine"] | null;
            /** @description Mounts, each as `SOURCE:TARGET` or `SOURCE:TARGET:ro`. */
            mounts?: string[];
        };
        /**
         * @description Profile with its name, as it is listed.
         * @example {
         *       "agent": "command",
         *       "description": "Reviews changes.",
         *       "name": "review",
         *       "computed": false
         *     }
         */
        ProfileDescription: {
            /**
             * @description Id of the agent's catalog row.
             * @default
             */
            agent: string;
            /** @description Purpose of the profile. */
            description?: string | null;
            /** @description Model, in the agent's own spelling. */
            model?: string | null;
            /** @description Name of the model configuration. */
            model_config?: string | null;
            /** @description Mode to work in. */
            mode?: string | null;
            /** @description Thinking level. */
            thinking?: string | null;
            /** @description System prompt. */
            system_prompt?: string | null;
            /** @description Handling of permission requests. */
            permissions?: components["schemas"]["ProfilePermissions"];
            /** @description Limits of the processes. */
            limits?: components["schemas"]["ProfileLimits"];
            /** @description Clocks of the session. */
            timeouts?: components["schemas"]["ProfileTimeouts"];
            /** @description Tree that the agent works in. */
            workspace?: components["schemas"]["WorkspaceKind"] | null;
            /** @description Files in reach. */
            sandbox?: components["schemas"]["ProfileSandbox"];
            /** @description Container of the agent. */
            container?: components["schemas"]["ProfileContainer"];
            /** @description Shell command before a session's first start, unless the session names one. */
            before_start?: string | null;
            /** @description Shell command after a session's end, unless the session names one. */
            after_end?: string | null;
            /** @description Name of the profile. */
            name: string;
            /** @description True for the profile that each found agent has by itself. */
            computed: boolean;
        };
        /**
         * @description Limits, each in the unit that its name ends with.
         * @example {
         *       "processes": 2
         *     }
         */
        ProfileLimits: {
            /**
             * Format: uint64
             * @description Memory of all processes together.
             */
            memory_bytes?: number | null;
            /**
             * Format: uint64
             * @description Number of processes at once.
             */
            processes?: number | null;
            /**
             * Format: uint64
             * @description CPU time of each process.
             */
            cpu_time_ms?: number | null;
            /**
             * Format: uint64
             * @description CPU of all processes together; 100 is one core.
             */
            cpu_percent?: number | null;
            /**
             * Format: uint64
             * @description Open files of each process.
             */
            open_files?: number | null;
            /**
             * Format: uint64
             * @description Size of a file that is written.
             */
            file_size_bytes?: number | null;
            /**
             * Format: uint64
             * @description Time from the start of the session.
             */
            wall_clock_ms?: number | null;
            /** @description False if no core dump is written. */
            core_dumps?: boolean | null;
            /** @description Action when a limit is exceeded. */
            on_limit?: components["schemas"]["LimitAction"] | null;
        };
        /**
         * @description Handling of permission requests.
         * @example {}
         */
        ProfilePermissions: {
            /** @description Decision if no rule matches: `ask`, `allow`, `deny`, `readOnly`. */
            mode?: components["schemas"]["PermissionMode"] | null;
            /** @description Rules of which the first match decides. The session's own rules come before them. */
            rules?: components["schemas"]["ProfileRule"][];
            /**
             * Format: uint64
             * @description Time that a request may wait for an answer, in milliseconds.
             */
            deadline_ms?: number | null;
            /** @description True if the request is then allowed; otherwise it is rejected. */
            allow_at_deadline?: boolean | null;
        };
        /**
         * @description Permission rule; fields that it leaves open are absent.
         * @example {
         *       "tool": "Bash",
         *       "command": "sleep 500",
         *       "path": "/home/ada/project/notes.md",
         *       "decision": "ask"
         *     }
         */
        ProfileRule: {
            /** @description Glob on the tool's machine name, or on its kind. */
            tool?: string | null;
            /** @description Glob on the whole command line. */
            command?: string | null;
            /** @description Glob on a path that the action touches. */
            path?: string | null;
            /** @description Decision if the rule matches. */
            decision: components["schemas"]["RuleDecision"];
        };
        /**
         * @description Files in reach of the sessions.
         * @example {}
         */
        ProfileSandbox: {
            /** @description Files in reach. */
            mode?: components["schemas"]["SandboxMode"] | null;
            /** @description Absolute paths that are read although the sandbox hides them. */
            read?: string[];
            /** @description Absolute paths that are written too. */
            write?: string[];
            /** @description Hosts in reach. */
            network?: components["schemas"]["NetworkAccess"] | null;
        };
        /**
         * @description Clocks in milliseconds; 0 stops a clock.
         * @example {}
         */
        ProfileTimeouts: {
            /**
             * Format: uint64
             * @description Time until the agent is ready.
             */
            start_ms?: number | null;
            /**
             * Format: uint64
             * @description Time from a prompt to the first sign of an answer.
             */
            first_response_ms?: number | null;
            /**
             * Format: uint64
             * @description Time of a turn without any event.
             */
            inactivity_ms?: number | null;
            /**
             * Format: uint64
             * @description Time of a whole turn.
             */
            turn_ms?: number | null;
            /**
             * Format: uint64
             * @description Time of one tool call.
             */
            tool_ms?: number | null;
            /**
             * Format: uint64
             * @description Time of silence before it is reported.
             */
            silence_ms?: number | null;
            /**
             * Format: uint64
             * @description Time between further reports of silence.
             */
            silence_repeat_ms?: number | null;
            /** @description Action when a clock runs out. */
            action?: components["schemas"]["TimeoutAction"] | null;
        };
        /**
         * @description Answer to a prompt that is not waited for.
         * @example {
         *       "turn": 1
         *     }
         */
        PromptAccepted: {
            /**
             * Format: uint64
             * @description Number of the turn; of a queued prompt, its future one. `null` if the agent has no turns.
             */
            turn: number | null;
        };
        /**
         * @description Treatment of a prompt while a turn runs.
         * @example refuse
         */
        PromptMode: "refuse" | "queue" | "steer";
        /**
         * @description Part of a prompt. `Debug` hides texts and images: they may contain secrets, or megabytes.
         *
         *     In JSON `{"text":"…"}`, `{"image":{"mimeType":"image/png","data":"…"}}`, `{"file":{"path":"/…"}}`.
         * @example {
         *       "text": "hello"
         *     }
         */
        PromptPart: {
            text: string;
        } | {
            image: {
                /** @description MIME type, such as `image/png`. */
                mimeType: string;
                /** @description Content of the image, in base64. */
                data: string;
            };
        } | {
            file: {
                /** @description Path, absolute or relative to the session's working directory. */
                path: string;
            };
        };
        /**
         * @description Body of `POST /v1/sessions/{id}/prompt`, and of `…/ask`.
         * @example {
         *       "text": "hello",
         *       "mode": "queue"
         *     }
         */
        PromptRequest: {
            /** @description Text of the prompt, or of the first of its parts. */
            text?: string;
            /**
             * @description Parts of the prompt: `[{"text":"…"},{"image":{"mimeType":"image/png","data":"…"}},{"file":{"path":"/…"}}]`.
             * @default []
             */
            parts?: components["schemas"]["PromptPart"][];
            /**
             * @description Handling of the prompt while a turn runs.
             * @default refuse
             */
            mode?: components["schemas"]["PromptMode"];
            /**
             * @description True to answer with the turn's events, to its end, as JSON lines; else with the record of its turn at once.
             * @default false
             */
            wait?: boolean;
            /** @description For an ask: true to answer with the calls of a stream handler, as JSON lines; else with the answer alone. The lines are `{"call":"start",…}`, `{"call":"chunk",…}` and, last, `{"call":"complete","answer":{…}}` or `{"call":"failed","error":{…}}`. */
            stream?: boolean;
            /** @description For an ask: address that is called when its turn has ended, with `context` in it, as a webhook. The server's configuration names the hosts that may be called. */
            callback?: string | null;
            /** @description For an ask with a callback: the caller's own, any JSON. With the metadata it has at most 16 KiB. */
            context?: unknown;
            /** @description Name of who sends it, for the list of those that wait; by default the caller's. */
            by?: string | null;
            /** @description Metadata of the caller's, which the prompt's events have: a JSON object of at most 16 KiB, without the member `turn`. */
            metadata?: {
                [key: string]: unknown;
            } | null;
        };
        /**
         * @description Proof that nothing is left.
         * @example noChildren
         */
        Proof: "noChildren" | {
            /** Format: uint32 */
            quietRounds: number;
        } | "processGone" | "none";
        /**
         * @description A prompt that waits for its turn, as it is listed.
         * @example {
         *       "offset": "00000000000000000007",
         *       "at": "2026-01-02T03:04:05.678Z",
         *       "text": "hello",
         *       "by": null
         *     }
         */
        QueuedPrompt: {
            /** @description Offset of the event that it was accepted with. 20 decimal digits in JSON. */
            offset: string;
            /**
             * Format: date-time
             * @description When that was. RFC 3339 in JSON.
             */
            at: string;
            /** @description The first 200 characters of its text. */
            text: string;
            /**
             * @description Name of the caller who sent it; `null` where that is not known.
             * @default null
             */
            by: string | null;
        };
        /**
         * @description Answer to `GET /v1/ready`.
         * @example {
         *       "ready": true,
         *       "degraded": []
         *     }
         */
        ReadyResponse: {
            /** @description True if sessions can be started, and their events be kept. */
            ready: boolean;
            /** @description Why not, a line each. */
            degraded: string[];
        };
        /**
         * @description Process that collected the exit status.
         * @example proxy
         */
        ReapedBy: "proxy" | "forkServer" | "parent" | "system";
        /**
         * @description Result of a kill. `is_empty` is true if it is proven.
         * @example {
         *       "sessionId": "s-1",
         *       "cause": "killSession",
         *       "processes": [
         *         {
         *           "id": {
         *             "pid": 4711,
         *             "startTime": 2471739
         *           },
         *           "ppid": 4710,
         *           "pgid": 4711,
         *           "sid": 4711,
         *           "command": "sleep 500",
         *           "outcome": {
         *             "ended": {
         *               "code": 0
         *             }
         *           }
         *         }
         *       ],
         *       "layers": [
         *         "baseline"
         *       ],
         *       "rounds": 2,
         *       "durationUs": 13950,
         *       "unattributed": [],
         *       "survivors": [],
         *       "omitted": 0,
         *       "proof": "noChildren",
         *       "cgroupEmpty": true,
         *       "unmarked": true
         *     }
         */
        Receipt: {
            /** @description Session of the processes. */
            sessionId: components["schemas"]["SessionId"];
            /** @description Cause of the kill. */
            cause: components["schemas"]["KillCause"];
            /** @description All processes seen alive from the start of the kill, in the order seen, survivors included. */
            processes: components["schemas"]["ReceiptEntry"][];
            /** @description Containment layers used. */
            layers: components["schemas"]["ContainmentLayer"][];
            /**
             * Format: uint32
             * @description Number of rounds of the kill loop.
             */
            rounds: number;
            /**
             * Format: uint64
             * @description Time from the first signal to the proof, in microseconds.
             */
            durationUs: number;
            /** @description Processes that may belong to another session whose proxy died at the same moment. Those that live (`Survived`) may be strangers: all supervisors of the session had died, nobody saw where they come from, and they were left alone. */
            unattributed: components["schemas"]["ReceiptEntry"][];
            /** @description Processes that are still alive. Empty unless the kill failed. */
            survivors: components["schemas"]["ProcessId"][];
            /**
             * Format: uint64
             * @description Number of deaths left out of `processes`, because there were too many.
             */
            omitted: number;
            /** @description Proof of the result. */
            proof: components["schemas"]["Proof"];
            /** @description True if the session's cgroup is empty; `null` where it has no cgroup, or the kill was not of everything. */
            cgroupEmpty?: boolean | null;
            /** @description True if no process has the session's marker in its environment; `null` where the kill was not of all, or of a proxy's receipt, whose session's fork server looks after it. */
            unmarked?: boolean | null;
            /**
             * @description Removal of the agent's container; `null` where it has none, or the kill was not of everything.
             * @default null
             */
            container?: components["schemas"]["ContainerRemoval"] | null;
        };
        /**
         * @description Process in a receipt.
         * @example {
         *       "id": {
         *         "pid": 4711,
         *         "startTime": 2471739
         *       },
         *       "ppid": 4710,
         *       "pgid": 4711,
         *       "sid": 4711,
         *       "command": "sleep 500",
         *       "outcome": {
         *         "ended": {
         *           "code": 0
         *         }
         *       }
         *     }
         */
        ReceiptEntry: {
            /** @description Identity of the process. */
            id: components["schemas"]["ProcessId"];
            /**
             * Format: uint32
             * @description Parent when the process was first seen.
             */
            ppid: number;
            /**
             * Format: uint32
             * @description Process group when the process was first seen.
             */
            pgid: number;
            /**
             * Format: uint32
             * @description POSIX session when the process was first seen.
             */
            sid: number;
            /** @description Command line; `null` where the process was gone before it could be read, or to keep the receipt short enough. */
            command?: string | null;
            /** @description End of the process. */
            outcome: components["schemas"]["ProcessOutcome"];
            /** @description Process that reaped it; `null` for a survivor. */
            reapedBy?: components["schemas"]["ReapedBy"] | null;
        };
        /**
         * @description Body of `POST /v1/records/{id}`: changes, applied one after the other.
         * @example {
         *       "title": "Login page",
         *       "addTags": [
         *         "web"
         *       ]
         *     }
         */
        RecordChange: {
            /**
             * @description Title for people; an empty one removes it.
             * @default null
             */
            title?: string | null;
            /**
             * @description Labels to add.
             * @default []
             */
            addTags?: string[];
            /**
             * @description Labels to remove.
             * @default []
             */
            removeTags?: string[];
            /**
             * @description True to archive the record, false to restore it.
             * @default null
             */
            archived?: boolean | null;
        };
        /**
         * @description Receipt in a session's stream.
         * @example {
         *       "offset": "00000000000000000007",
         *       "createdAt": "2026-01-02T03:04:05.678Z",
         *       "type": "stream:text",
         *       "receipt": {
         *         "sessionId": "s-1",
         *         "cause": "killSession",
         *         "processes": [
         *           {
         *             "id": {
         *               "pid": 4711,
         *               "startTime": 2471739
         *             },
         *             "ppid": 4710,
         *             "pgid": 4711,
         *             "sid": 4711,
         *             "command": "sleep 500",
         *             "outcome": {
         *               "ended": {
         *                 "code": 0
         *               }
         *             }
         *           }
         *         ],
         *         "layers": [
         *           "baseline"
         *         ],
         *         "rounds": 2,
         *         "durationUs": 13950,
         *         "unattributed": [],
         *         "survivors": [],
         *         "omitted": 0,
         *         "proof": "noChildren",
         *         "cgroupEmpty": true,
         *         "unmarked": true
         *       }
         *     }
         */
        RecordedReceipt: {
            /** @description Offset of its event: 20 decimal digits. */
            offset: string;
            /**
             * Format: date-time
             * @description Time of its event.
             */
            createdAt: string;
            /** @description Type of its event: `session:ended` or `session:suspended`. */
            type: string;
            /** @description The receipt. */
            receipt: components["schemas"]["Receipt"];
        };
        /**
         * @description Kill of a session whose owner was silent: the owner carries it out when it is back.
         * @example {
         *       "by": "text",
         *       "atNode": "text"
         *     }
         */
        RememberedKill: {
            /** @description Name of the caller. */
            by: string;
            /** @description Node at which it was asked for. */
            atNode: components["schemas"]["NodeName"];
        };
        /**
         * @description Policy for restarting a session, with its conversation, when its agent or its proxy dies.
         * @example never
         */
        Restart: "never" | {
            onCrash: {
                /**
                 * Format: uint32
                 * @description Crashes within ten minutes beyond which the session ends.
                 */
                max: number;
                /**
                 * Format: uint64
                 * @description First pause, in milliseconds; the longest is a minute.
                 */
                backoffMs: number;
            };
        };
        /**
         * @description Fallback of a suspended session whose conversation is gone: its agent cannot load it any more.
         * @example fail
         */
        ResumeFallback: "fail" | "new" | "history";
        /**
         * @description Conversation of the agent that a session continues.
         * @example {
         *       "native": {
         *         "id": "permission-1"
         *       }
         *     }
         */
        ResumeFrom: {
            native: {
                /** @description Agent's id of the conversation, or a file if the agent accepts one. */
                id: string;
            };
        } | {
            session: {
                /** @description Id of the session, which has ended. */
                id: components["schemas"]["SessionId"];
            };
        } | "mostRecent";
        /**
         * @description What a resume needs beside the session's configuration: secrets, since no record keeps these, so that a session of an earlier manager needs them again (retained while the manager lives); and what is done if the conversation is gone. `Debug` shows no values.
         * @example {
         *       "env": {
         *         "LANG": "C.UTF-8"
         *       }
         *     }
         */
        ResumeOptions: {
            /**
             * @description Environment variables; each replaces the one with its name.
             * @default {}
             */
            env?: components["schemas"]["EnvVars"];
            /**
             * @description MCP servers; each replaces the one with its name.
             * @default []
             */
            mcpServers?: components["schemas"]["McpServer"][];
            /**
             * @description Address of the running server; replaces the one before.
             * @default null
             */
            endpoint?: string | null;
            /**
             * @description Names of values that are no secrets from now on, as in `not_secret`.
             * @default []
             */
            notSecret?: string[];
            /** @description Fallback if the conversation is gone. Of this resume alone. */
            onMissing?: components["schemas"]["ResumeFallback"];
        };
        /**
         * @description Request to continue a conversation in a new process.
         * @example {
         *       "from": {
         *         "native": {
         *           "id": "permission-1"
         *         }
         *       },
         *       "fork": false,
         *       "onMissing": "fail"
         *     }
         */
        ResumeRequest: {
            /** @description Conversation to continue. */
            from: components["schemas"]["ResumeFrom"];
            /**
             * @description True to continue a copy and leave the original unchanged.
             * @default false
             */
            fork?: boolean;
            /**
             * @description Fallback if the conversation is not available.
             * @default fail
             */
            onMissing?: components["schemas"]["OnMissing"];
        };
        /**
         * @description What a caller may do. Each includes those before it.
         * @example read
         */
        Role: "read" | "operate" | "admin";
        /**
         * @description Decision of a rule.
         * @example ask
         * @enum {string}
         */
        RuleDecision: "ask" | "allow" | "deny";
        /**
         * @description Files that a session's processes may read and write.
         * @example off
         */
        SandboxMode: "off" | "read-only" | "workspace";
        /**
         * @description Sandbox in force, as reported in `session:started`.
         * @example {
         *       "mode": "off",
         *       "layer": "text",
         *       "write": [
         *         "text"
         *       ],
         *       "hidden": [
         *         "text"
         *       ],
         *       "network": "host"
         *     }
         */
        SandboxStatus: {
            /** @description Mode in force. */
            mode: components["schemas"]["SandboxMode"];
            /** @description Layer that enforces it: `mounts` or `landlock`. */
            layer: string;
            /** @description Paths that are written, besides a private `/tmp` where the layer is `mounts`. */
            write: string[];
            /** @description Paths that were there at the start and cannot be read. */
            hidden: string[];
            /** @description Hosts in reach. */
            network: components["schemas"]["NetworkAccess"];
        };
        /**
         * @description Secret text: `Debug` hides it.
         * @example a-key-of-yours
         */
        Secret: string;
        /**
         * @description Container of a session, as it is requested.
         * @example {}
         */
        SessionContainer: {
            /**
             * @description Image that the agent runs in, with or without a tag; `null` for the profile's, else that of the agent's row, else no container.
             * @default null
             */
            image?: string | null;
            /**
             * @description Engine; `null` for the first that is installed of podman and docker.
             * @default null
             */
            engine?: components["schemas"]["ContainerEngine"] | null;
            /**
             * @description Mounts, besides the working directory, which is mounted at its own path.
             * @default []
             */
            mounts?: components["schemas"]["SessionMount"][];
        };
        /**
         * @description Id of a session.
         * @example s-1
         */
        SessionId: string;
        /**
         * @description Snapshot of one session.
         * @example {
         *       "sessionId": "s-1",
         *       "agent": "acp",
         *       "agentType": null,
         *       "userId": "ada",
         *       "workspaceId": null,
         *       "cwd": "/home/ada/project",
         *       "profile": null,
         *       "home": null,
         *       "depth": 1,
         *       "surface": "machine",
         *       "startedAt": "2026-01-02T03:04:05.678Z",
         *       "model": "example-model",
         *       "mode": "plan",
         *       "thinking": null,
         *       "title": "Login page",
         *       "agentTitle": null,
         *       "currentModel": null,
         *       "currentMode": null,
         *       "currentThinking": null,
         *       "commands": null,
         *       "nativeSessionId": "9b2f6c1e",
         *       "nativeSessionFile": null,
         *       "resumable": true,
         *       "state": "idle",
         *       "status": null,
         *       "handedOver": false,
         *       "ending": false,
         *       "openPermissions": [],
         *       "screenStatus": null,
         *       "degraded": null,
         *       "archived": false,
         *       "warm": false,
         *       "proxy": {
         *         "pid": 4711,
         *         "startTime": 2471739
         *       },
         *       "agentProcess": {
         *         "pid": 4711,
         *         "startTime": 2471739
         *       },
         *       "measures": {
         *         "layers": [
         *           "baseline"
         *         ],
         *         "observer": "connector",
         *         "limits": [
         *           {
         *             "limit": "memory",
         *             "value": 2147483648,
         *             "form": "cgroup"
         *           }
         *         ],
         *         "undumpable": true,
         *         "landlock": true,
         *         "ownCgroupsOnly": true,
         *         "agentSandbox": null,
         *         "sandbox": null,
         *         "container": null
         *       },
         *       "turns": 1,
         *       "queued": [],
         *       "lastOffset": "00000000000000000013",
         *       "heartbeat": "2026-01-02T03:04:05.678Z",
         *       "metrics": {
         *         "messages": 2,
         *         "toolCalls": 0,
         *         "failedToolCalls": 0,
         *         "permissionRequests": 0,
         *         "errors": 0,
         *         "usage": {
         *           "inputTokens": 1200,
         *           "outputTokens": 340,
         *           "cachedInputTokens": null,
         *           "cacheReadTokens": null,
         *           "cacheWriteTokens": null,
         *           "costUsd": 0.25,
         *           "costSource": null
         *         },
         *         "events": 13,
         *         "eventBytes": 3414,
         *         "busyMs": 1200,
         *         "silentMs": 0,
         *         "missedPings": 0
         *       },
         *       "processUse": {
         *         "processes": 2,
         *         "cpuPercent": 0,
         *         "rssBytes": 27422720
         *       }
         *     }
         */
        SessionInfo: {
            /** @description Id of the session. */
            sessionId: components["schemas"]["SessionId"];
            /** @description Catalog id of its agent. */
            agent: string;
            /** @description Configured label for the agent's type. */
            agentType: string | null;
            /** @description Configured label for the user. */
            userId: string | null;
            /** @description Configured label for the workspace. */
            workspaceId: string | null;
            /** @description Working directory. */
            cwd: string;
            /** @description Profile that the session was started with. */
            profile: string | null;
            /** @description Home directory that belongs to the session; `null` if it has the shared one. */
            home: string | null;
            /**
             * Format: uint32
             * @description Nesting depth; 1 for a session that was started from outside any session.
             * @default 0
             */
            depth: number;
            /**
             * @description Ways in which it is driven.
             * @default machine
             */
            surface: components["schemas"]["Surface"];
            /**
             * Format: date-time
             * @description Time of the `start_session` call. RFC 3339 in JSON.
             */
            startedAt: string;
            /** @description Model, in the agent's own spelling. */
            model: string | null;
            /** @description Mode to work in. */
            mode: string | null;
            /** @description Thinking level. */
            thinking: string | null;
            /**
             * @description Title: the one that a caller gave, else the agent's own; `null` without either.
             * @default null
             */
            title: string | null;
            /**
             * @description The agent's own title of the conversation; `null` if it gave none.
             * @default null
             */
            agentTitle: string | null;
            /**
             * @description Model that is in use, in the agent's own spelling; `null` where the agent does not tell it.
             * @default null
             */
            currentModel: string | null;
            /**
             * @description Mode that is in use, in the agent's own spelling; `null` where the agent does not tell it.
             * @default null
             */
            currentMode: string | null;
            /**
             * @description Thinking level that is in use, in the agent's own spelling; `null` where the agent does not tell it.
             * @default null
             */
            currentThinking: string | null;
            /**
             * @description Slash commands that the agent offers; `null` where it tells none.
             * @default null
             */
            commands: components["schemas"]["SlashCommand"][] | null;
            /** @description The agent's own id of the conversation; `null` until it is known, and if the agent has none. */
            nativeSessionId: string | null;
            /** @description The file in which the agent keeps that conversation (OpenCode: its database of all). `null` until the file is found: agents create it with the first prompt. Always `null` for agents whose directory of conversations is unknown. */
            nativeSessionFile: string | null;
            /** @description True if another process can resume the conversation, as far as is known. `false` for an ephemeral session, or if the agent or its catalog row rules it out. Such a session is not suspended. */
            resumable: boolean;
            /** @description Lifecycle state. */
            state: components["schemas"]["SessionState"];
            /**
             * @description Lifecycle state as one word.
             * @default null
             */
            readonly status: components["schemas"]["SessionStatus"] | null;
            /**
             * @description True if it is suspended for somebody to use its conversation with the agent itself.
             * @default false
             */
            handedOver: boolean;
            /**
             * @description True while the session ends: its processes are being ended, and calls fail.
             * @default false
             */
            ending: boolean;
            /**
             * @description Permission requests that wait for an answer, oldest first. The turn waits with them.
             * @default []
             */
            openPermissions: components["schemas"]["OpenPermission"][];
            /**
             * @description Latest status of the agent's own screen: `idle`, `working`, `blocked`, or another word of the program's. `null` if it has reported none, or has no screen.
             * @default null
             */
            screenStatus: string | null;
            /**
             * @description Reason why what happens in the session now is not kept: its fleet is unavailable, or its event log cannot be written. `null` otherwise.
             * @default null
             */
            degraded: string | null;
            /**
             * @description True if a user archived the session.
             * @default false
             */
            archived: boolean;
            /**
             * @description True while it is warm: started ahead, and nobody's before a start claims it.
             * @default false
             */
            warm: boolean;
            /** @description Process of the proxy; `null` until it is known. For an ended session: the last one. */
            proxy: components["schemas"]["ProcessId"] | null;
            /** @description Process of the agent; `null` until it is ready. For an ended session: the last one. */
            agentProcess: components["schemas"]["ProcessId"] | null;
            /** @description Containment, observer and limits in force; `null` until the session is ready. */
            measures: components["schemas"]["ContainmentStatus"] | null;
            /**
             * Format: uint64
             * @description Number of prompts accepted so far, each a turn; queued prompts and steers are not counted.
             */
            turns: number;
            /** @description The prompts that were accepted and wait for their turn, in order. Those of a suspended session wait for its resume. */
            queued: components["schemas"]["QueuedPrompt"][];
            /** @description Offset of its last event, 0 if there is none. 20 decimal digits in JSON, as for all offsets. */
            lastOffset: string;
            /**
             * Format: date-time
             * @description Time of the last message of its proxy. RFC 3339 in JSON.
             */
            heartbeat: string;
            /** @description Activity so far. */
            metrics: components["schemas"]["SessionMetrics"];
            /** @description Current resource use of its processes; `null` unless requested (`ProxyManager::measured_sessions`). */
            processUse: components["schemas"]["ProcessUse"] | null;
        };
        /**
         * @description Activity of a session so far.
         * @example {
         *       "messages": 2,
         *       "toolCalls": 0,
         *       "failedToolCalls": 0,
         *       "permissionRequests": 0,
         *       "errors": 0,
         *       "usage": {
         *         "inputTokens": 1200,
         *         "outputTokens": 340,
         *         "cachedInputTokens": null,
         *         "cacheReadTokens": null,
         *         "cacheWriteTokens": null,
         *         "costUsd": 0.25,
         *         "costSource": null
         *       },
         *       "events": 13,
         *       "eventBytes": 3414,
         *       "busyMs": 1200,
         *       "silentMs": 0,
         *       "missedPings": 0
         *     }
         */
        SessionMetrics: {
            /**
             * Format: uint64
             * @description Prompts accepted, and answers: text of the agent between two other things.
             */
            messages: number;
            /**
             * Format: uint64
             * @description Number of tool calls begun.
             */
            toolCalls: number;
            /**
             * Format: uint64
             * @description Number of tool calls that failed or were rejected.
             */
            failedToolCalls: number;
            /**
             * Format: uint64
             * @description Number of permission requests.
             */
            permissionRequests: number;
            /**
             * Format: uint64
             * @description Number of errors that the agent reported, including those it retried after.
             */
            errors: number;
            /** @description Tokens and cost of all turns, as far as the agent reports them. */
            usage: components["schemas"]["Usage"];
            /**
             * Format: uint64
             * @description Number of events.
             */
            events: number;
            /**
             * Format: uint64
             * @description Bytes of the events caused by the agent and its processes, as `weight` counts them.
             */
            eventBytes: number;
            /**
             * Format: uint64
             * @description Milliseconds spent in turns.
             */
            busyMs: number;
            /**
             * Format: uint64
             * @description Milliseconds since the last message of its proxy, at the time of the snapshot.
             */
            silentMs: number;
            /**
             * Format: uint32
             * @description Number of pings in a row that its proxy has not answered.
             */
            missedPings: number;
        };
        /**
         * @description File or directory of the host that a container sees.
         * @example {
         *       "source": "text",
         *       "target": "text"
         *     }
         */
        SessionMount: {
            /** @description Absolute path on the host. */
            source: string;
            /** @description Absolute path in the container. */
            target: string;
            /**
             * @description True if the container cannot write it.
             * @default false
             */
            readOnly?: boolean;
        };
        /**
         * @description Order of sessions.
         * @example startedAt
         */
        SessionOrder: "startedAt" | "-startedAt" | "id" | "-id";
        /**
         * @description Permission request that is open, with its session.
         * @example {
         *       "sessionId": "s-1",
         *       "id": "permission-1",
         *       "title": "Run ls",
         *       "tool": "Bash",
         *       "kind": "execute",
         *       "command": "ls",
         *       "paths": [],
         *       "input": {
         *         "command": "ls"
         *       },
         *       "options": [
         *         {
         *           "id": "once",
         *           "name": "Allow once",
         *           "kind": "allowOnce"
         *         }
         *       ]
         *     }
         */
        SessionPermission: {
            /** @description Session that waits for the answer. */
            sessionId: components["schemas"]["SessionId"];
            /** @description Id of the request, for its answer. */
            id: string;
            /** @description Title for people, one line. */
            title: string;
            /** @description Machine name of the tool, if the agent gives one; else the kind. */
            tool: string;
            /**
             * @description Kind of action, as in the event.
             * @default
             */
            kind: string;
            /** @description Command line, if the action runs one. */
            command: string | null;
            /**
             * @description Paths that the action would touch, if the agent names them, in the agent's form.
             * @default []
             */
            paths: string[];
            /**
             * @description Details as the agent gave them, such as the text that would be written; `null` if it did not. Of more than 128 KiB the long texts are cut, and say so: the event has all.
             * @default null
             */
            input: unknown;
            /** @description Possible answers. */
            options: components["schemas"]["PermissionOption"][];
        };
        /**
         * @description Whether a session runs.
         * @example running
         */
        SessionPhase: "running" | "suspended" | "ended";
        /**
         * @description Record of a session. With a state directory it outlives the manager, until the session is deleted.
         * @example {
         *       "sessionId": "s-1",
         *       "status": "idle",
         *       "reason": null,
         *       "handedOver": false,
         *       "waitingFor": null,
         *       "archived": false,
         *       "warm": false,
         *       "config": {
         *         "agent": "command",
         *         "command": [
         *           "cat"
         *         ]
         *       },
         *       "secrets": [],
         *       "nativeSessionId": "9b2f6c1e",
         *       "nativeSessionFile": null,
         *       "resumable": true,
         *       "agentTitle": null,
         *       "currentModel": null,
         *       "currentMode": null,
         *       "currentThinking": null,
         *       "commands": null,
         *       "endpoint": null,
         *       "home": null,
         *       "hostExecutionId": "01a20a43-e6b0-7502-b358-3b338ae2f621",
         *       "proxy": {
         *         "pid": 4711,
         *         "startTime": 2471739
         *       },
         *       "agentProcess": {
         *         "pid": 4711,
         *         "startTime": 2471739
         *       },
         *       "createdAt": "2026-01-02T03:04:05.678Z",
         *       "updatedAt": "2026-01-02T03:04:05.678Z",
         *       "heartbeat": "2026-01-02T03:04:05.678Z",
         *       "turns": 1,
         *       "messages": 2,
         *       "usage": {
         *         "inputTokens": 1200,
         *         "outputTokens": 340,
         *         "cachedInputTokens": null,
         *         "cacheReadTokens": null,
         *         "cacheWriteTokens": null,
         *         "costUsd": 0.25,
         *         "costSource": null
         *       },
         *       "turnUsage": {
         *         "turn": 1,
         *         "usage": {
         *           "inputTokens": 1200,
         *           "outputTokens": 340,
         *           "cachedInputTokens": null,
         *           "cacheReadTokens": null,
         *           "cacheWriteTokens": null,
         *           "costUsd": 0.25,
         *           "costSource": null
         *         }
         *       },
         *       "lastOffset": "00000000000000000013",
         *       "queued": 0
         *     }
         */
        SessionRecord: {
            /** @description Id of the session. */
            sessionId: components["schemas"]["SessionId"];
            /** @description Lifecycle state as one word. */
            status: components["schemas"]["SessionStatus"];
            /** @description Reason for the suspension or the end. */
            reason: components["schemas"]["EndReason"] | null;
            /**
             * @description True if a user continues the conversation with the agent itself.
             * @default false
             */
            handedOver: boolean;
            /**
             * @description Permission request that its turn waits for, the oldest one. Known to the manager that has the session.
             * @default null
             */
            waitingFor: string | null;
            /** @description True if a user archived the session. */
            archived: boolean;
            /**
             * @description True while it is warm: started ahead, and nobody's before a start claims it.
             * @default false
             */
            warm: boolean;
            /** @description Configuration for its start and its resumes, without secrets. */
            config: components["schemas"]["AgentSessionConfig"];
            /** @description Names of the secrets left out of `config`, as in `secrets`; `modelConfig.key` if its model configuration had a key. A resume in another manager needs them again. */
            secrets: string[];
            /** @description The agent's own id of the conversation; `null` until it is known, and if the agent has none. */
            nativeSessionId: string | null;
            /** @description The file in which the agent keeps that conversation (OpenCode: its database of all). `null` until the file is found: agents create it with the first prompt. Always `null` for agents whose directory of conversations is unknown. */
            nativeSessionFile: string | null;
            /** @description True if another process can resume the conversation, as far as is known. `false` for an ephemeral session, or if the agent or its catalog row rules it out. Such a session is not suspended. */
            resumable: boolean;
            /**
             * @description The agent's own title of the conversation; `null` if it gave none.
             * @default null
             */
            agentTitle: string | null;
            /**
             * @description Model that is in use, in the agent's own spelling; `null` where the agent does not tell it.
             * @default null
             */
            currentModel: string | null;
            /**
             * @description Mode that is in use, in the agent's own spelling; `null` where the agent does not tell it.
             * @default null
             */
            currentMode: string | null;
            /**
             * @description Thinking level that is in use, in the agent's own spelling; `null` where the agent does not tell it.
             * @default null
             */
            currentThinking: string | null;
            /**
             * @description Slash commands that the agent offers; `null` where it tells none.
             * @default null
             */
            commands: components["schemas"]["SlashCommand"][] | null;
            /** @description Address of the agent's server, without a login: the running server that the session is connected to, or its own while it runs. */
            endpoint: string | null;
            /** @description Home directory that belongs to the session. */
            home: string | null;
            /** @description The manager that has the session, or had it last: an id of one run. */
            hostExecutionId: string;
            /** @description Process of the proxy; `null` until it is known. For an ended session: the last one. */
            proxy: components["schemas"]["ProcessId"] | null;
            /** @description Process of the agent; `null` until it is ready. For an ended session: the last one. */
            agentProcess: components["schemas"]["ProcessId"] | null;
            /**
             * Format: date-time
             * @description Time of its first start. RFC 3339.
             */
            createdAt: string;
            /**
             * Format: date-time
             * @description Time of the record's last change. RFC 3339.
             */
            updatedAt: string;
            /**
             * Format: date-time
             * @description Time at which its manager last knew it alive. It is written for all live sessions together every 30 seconds, and at each change; after a crash of the host it is at most that much too early. RFC 3339.
             */
            heartbeat: string;
            /**
             * Format: uint64
             * @description Number of turns so far.
             */
            turns: number;
            /**
             * Format: uint64
             * @description Number of prompts accepted and answers, as in `messages`.
             */
            messages: number;
            /** @description Tokens and cost of all turns, as far as the agent reports them. */
            usage: components["schemas"]["Usage"];
            /** @description Part of `usage` that belongs to the turn counted last: a host that takes the session over during that turn receives its usage again. */
            turnUsage: components["schemas"]["TurnUsage"];
            /** @description Offset of its last event when the record was written. 20 decimal digits in JSON, as for all offsets. */
            lastOffset: string;
            /**
             * Format: uint64
             * @description Accepted prompts that wait for their turn; those of a suspended session wait for its resume.
             */
            queued: number;
        };
        /**
         * @description Sandbox of a session, as it is requested.
         * @example {}
         */
        SessionSandbox: {
            /**
             * @description Files in reach; `null` for the profile's, and `off` without one.
             * @default null
             */
            mode?: components["schemas"]["SandboxMode"] | null;
            /**
             * @description Absolute paths that are read although the sandbox hides them.
             * @default []
             */
            read?: string[];
            /**
             * @description Absolute paths that are written too.
             * @default []
             */
            write?: string[];
            /**
             * @description Hosts in reach; `null` for the profile's, and `host` without one. Another than `host` needs a mode other than `off`.
             * @default null
             */
            network?: components["schemas"]["NetworkAccess"] | null;
        };
        /**
         * @description Snapshot of a suspended session, from which this manager, or another one that sees the same files, resumes it.
         * @example {
         *       "config": {
         *         "agent": "command",
         *         "command": [
         *           "cat"
         *         ]
         *       },
         *       "nativeSessionId": "9b2f6c1e",
         *       "home": null,
         *       "turns": 1,
         *       "lastOffset": "00000000000000000013",
         *       "secrets": []
         *     }
         */
        SessionSnapshot: {
            /** @description Configuration of its start, without secrets; these must be given again. */
            config: components["schemas"]["AgentSessionConfig"];
            /** @description The agent's own id of the conversation. */
            nativeSessionId: string;
            /** @description Home directory that belongs to the session, if any: it has the conversation. */
            home?: string | null;
            /**
             * Format: uint64
             * @description Number of turns so far.
             */
            turns: number;
            /** @description Offset of its last event. 20 decimal digits in JSON, as for all offsets. */
            lastOffset: string;
            /** @description Names of the secrets that it was started with, as in `secrets`. */
            secrets: string[];
            /** @description Receipt of the processes ended by the suspension. */
            receipt?: components["schemas"]["Receipt"] | null;
        };
        /**
         * @description Lifecycle state of a session: starting, then idle and busy by turns, then ended. A suspended session may start again.
         *
         *     In JSON `"starting"`, `"idle"`, `{"busy":{"turn":1}}`, `{"ended":{"reason":"killed","receipt":{…}}}`; other facts are left out.
         * @example idle
         */
        SessionState: "starting" | "idle" | {
            busy: {
                /**
                 * Format: uint64
                 * @description Number of the turn; the first is 1.
                 */
                turn: number;
            };
        } | {
            suspended: {
                /** @description Reason for the suspension. */
                reason: components["schemas"]["EndReason"];
                /** @description Receipt that proves nothing is left; `null` if nobody could tell. */
                receipt: components["schemas"]["Receipt"] | null;
            };
        } | {
            ended: {
                /** @description Reason for the end. */
                reason: components["schemas"]["EndReason"];
                /** @description Receipt that proves nothing is left; `null` if nobody could tell. */
                receipt: components["schemas"]["Receipt"] | null;
            };
        };
        /**
         * @description State of a session's lifecycle, as one word: a `SessionState` without its facts.
         * @example idle
         */
        SessionStatus: "starting" | "idle" | "busy" | "suspended" | "ended";
        /**
         * @description Body of `POST /v1/sessions/{id}/processes/{pid}/signal`: `{"signal":"SIGINT"}`.
         * @example {
         *       "signal": "text",
         *       "startTime": 2471739
         *     }
         */
        SignalRequest: {
            /** @description Signal to send: a name, as in `SIGINT`, or a number from 1 to 64. */
            signal: string | number;
            /**
             * Format: uint64
             * @description Start time of the process, as a listing has it: a process that got the pid later is not signalled. Without it the process that has the pid now is.
             */
            startTime?: number | null;
        };
        /**
         * @description Answer to a signal.
         * @example {
         *       "process": {
         *         "pid": 4711,
         *         "startTime": 2471739
         *       },
         *       "signal": "text"
         *     }
         */
        SignalResponse: {
            /** @description Process that was signalled. */
            process: components["schemas"]["ProcessId"];
            /** @description The signal. */
            signal: string | number;
        };
        /**
         * @description Command that the agent offers in its prompt: `/name input`.
         * @example {
         *       "name": "main",
         *       "description": "Any program.",
         *       "argumentHint": null
         *     }
         */
        SlashCommand: {
            /** @description Name, without the slash. */
            name: string;
            /** @description Description for people; `null` where the agent gives none. */
            description: string | null;
            /** @description Hint at its argument; `null` where the agent gives none. */
            argumentHint: string | null;
        };
        /**
         * @description Body of `POST /v1/resume`: a session that another daemon has suspended.
         * @example {
         *       "snapshot": {
         *         "config": {
         *           "agent": "command",
         *           "command": [
         *             "cat"
         *           ]
         *         },
         *         "nativeSessionId": "9b2f6c1e",
         *         "home": null,
         *         "turns": 1,
         *         "lastOffset": "00000000000000000013",
         *         "secrets": []
         *       },
         *       "options": {
         *         "env": {
         *           "LANG": "C.UTF-8"
         *         }
         *       }
         *     }
         */
        SnapshotResume: {
            /** @description Answer of `POST /v1/sessions/{id}/suspend` there. */
            snapshot: components["schemas"]["SessionSnapshot"];
            /**
             * @description Values missing from the snapshot.
             * @default {
             *       "env": {},
             *       "mcpServers": [],
             *       "endpoint": null,
             *       "notSecret": []
             *     }
             */
            options?: components["schemas"]["ResumeOptions"];
        };
        /**
         * @description Protocol of a socket.
         * @example tcp
         */
        SocketProtocol: "tcp" | "udp";
        /**
         * @description Session that did not move.
         * @example {
         *       "sessionId": "s-1",
         *       "reason": "text"
         *     }
         */
        StayingSession: {
            /** @description Id of the session. */
            sessionId: components["schemas"]["SessionId"];
            /** @description Reason for which it stays. */
            reason: string;
        };
        /**
         * @description Body of `POST /v1/sessions/{id}/steer`.
         * @example {
         *       "text": "in German"
         *     }
         */
        SteerRequest: {
            /** @description Text for the running turn, or for the first of the parts. */
            text?: string;
            /**
             * @description Parts for the running turn, as in `PromptRequest`.
             * @default []
             */
            parts?: components["schemas"]["PromptPart"][];
        };
        /**
         * @description Line of the answer to `POST /v1/stop`: `{"call":"draining",…}` at each change, and last `{"call":"stopped",…}`.
         * @example {
         *       "call": "draining",
         *       "turns": 1,
         *       "longestMs": 30000
         *     }
         */
        StopProgressLine: {
            /** @constant */
            call: "draining";
            /**
             * Format: uint
             * @description Number of running turns.
             */
            turns: number;
            /**
             * Format: uint64
             * @description Longest time that they have, in milliseconds, from the first such line.
             */
            longestMs: number;
        } | {
            /** @constant */
            call: "stopped";
            /** @description Sessions that were alive. */
            sessions: components["schemas"]["StoppedSession"][];
            /**
             * @description Sessions that run on, for the next daemon.
             * @default []
             */
            detached: components["schemas"]["SessionId"][];
        };
        /**
         * @description Reason for the end of a turn.
         * @example endTurn
         */
        StopReason: "endTurn" | "cancelled" | "refusal" | "maxTokens" | "maxRequests" | {
            other: string;
        };
        /**
         * @description Body of `POST /v1/stop`: `{}`, `{"now":true}`. The answer is a stream of `StopProgressLine`s.
         * @example {
         *       "now": true,
         *       "detach": false
         *     }
         */
        StopRequest: {
            /**
             * @description True to end running turns; else they may finish, for as long as the daemon allows.
             * @default false
             */
            now?: boolean;
            /**
             * @description True to let sessions run on that were started with `onHostDeath: detach`: the next daemon has them again.
             * @default false
             */
            detach?: boolean;
        };
        /**
         * @description Session that a daemon's end has ended.
         * @example {
         *       "sessionId": "s-1",
         *       "status": "idle",
         *       "receipt": {
         *         "sessionId": "s-1",
         *         "cause": "killSession",
         *         "processes": [
         *           {
         *             "id": {
         *               "pid": 4711,
         *               "startTime": 2471739
         *             },
         *             "ppid": 4710,
         *             "pgid": 4711,
         *             "sid": 4711,
         *             "command": "sleep 500",
         *             "outcome": {
         *               "ended": {
         *                 "code": 0
         *               }
         *             }
         *           }
         *         ],
         *         "layers": [
         *           "baseline"
         *         ],
         *         "rounds": 2,
         *         "durationUs": 13950,
         *         "unattributed": [],
         *         "survivors": [],
         *         "omitted": 0,
         *         "proof": "noChildren",
         *         "cgroupEmpty": true,
         *         "unmarked": true
         *       }
         *     }
         */
        StoppedSession: {
            /** @description Id of the session. */
            sessionId: components["schemas"]["SessionId"];
            /** @description Its state now: `suspended` if the next daemon can resume it, else `ended`. */
            status: components["schemas"]["SessionStatus"];
            /** @description Receipt for its processes. */
            receipt: components["schemas"]["Receipt"];
        };
        /**
         * @description Ways in which a session is driven.
         * @example machine
         */
        Surface: "machine" | "terminal" | "both";
        /**
         * @description Body of `POST /v1/sessions/{id}/suspend` and `…/hand-over`.
         * @example {
         *       "graceMs": 2000
         *     }
         */
        SuspendRequest: {
            /**
             * Format: uint64
             * @description Milliseconds between SIGTERM and SIGKILL; 2000 by default, 0 sends SIGKILL at once.
             * @default null
             */
            graceMs?: number | null;
        };
        /**
         * @description Terminal of a session: the agent is started in it, as in a terminal window.
         * @example {
         *       "size": {
         *         "rows": 24,
         *         "columns": 80
         *       }
         *     }
         */
        TerminalConfig: {
            /**
             * @description Size at first. Later it is that of the viewer who came or typed last.
             * @default {
             *       "rows": 24,
             *       "columns": 80
             *     }
             */
            size?: components["schemas"]["TerminalSize"];
            /**
             * @description Effect of the last viewer's leave, however it left.
             * @default keep
             */
            onDetach?: components["schemas"]["OnDetach"];
            /** @description File for a recording (asciicast version 3): an absolute path of a file that does not exist. */
            record?: string | null;
            /**
             * Format: uint16
             * @description Row of the cursor at first, from 0. Rows above belong to whoever uses the terminal window already, and are not painted until the program does.
             * @default 0
             */
            firstRow?: number;
            /** @description Colour of the text, as red, green and blue: the answer to programs that ask for it. */
            foreground?: number[] | null;
            /** @description Colour of the background. */
            background?: number[] | null;
            /**
             * @description True if the session has a terminal for this incarnation alone: its user visits the agent's own screen, and the next incarnation speaks the agent's protocol again.
             * @default false
             */
            visit?: boolean;
            /**
             * @description True to have the agent report what happens on its own screen, where it can (Claude Code): prompts, text and tool calls are events then.
             * @default false
             */
            observed?: boolean;
            /** @description Path of the pipe for these reports. The manager fills it in. */
            reports?: string | null;
            /**
             * @description Path of the pipe for commands to a screen that speaks the agent's protocol, whose messages are those reports. The manager fills it in.
             * @default null
             */
            commands?: string | null;
        };
        /**
         * @description Size of a terminal, in cells.
         * @example {
         *       "rows": 24,
         *       "columns": 80
         *     }
         */
        TerminalSize: {
            /**
             * Format: uint16
             * @description Number of rows: 1 to 500.
             */
            rows: number;
            /**
             * Format: uint16
             * @description Number of columns: 2 to 1,000.
             */
            columns: number;
        };
        /**
         * @description Action when a clock runs out.
         * @example warn
         */
        TimeoutAction: "warn" | "abortTurn" | "killSession";
        /**
         * @description Clock that ran out.
         * @example start
         */
        TimeoutKind: "start" | "firstResponse" | "inactivity" | "turn" | "tool";
        /**
         * @description Clocks of a session, in milliseconds; `null` stops one (of the start: 0). The clocks of a turn stand still while a tool runs or a permission request is open.
         * @example {
         *       "action": "warn"
         *     }
         */
        Timeouts: {
            /**
             * Format: uint64
             * @description Time until the agent is ready; `null` for the manager's own, 0 for none. When it runs out the start fails and is ended, unless the action is `Warn`: then it continues for as long as somebody waits for it.
             * @default null
             */
            startMs?: number | null;
            /**
             * Format: uint64
             * @description Time to the first sign of an answer. 30 s by default.
             * @default 30000
             */
            firstResponseMs?: number | null;
            /**
             * Format: uint64
             * @description Time between two signs of life. 120 s by default.
             * @default 120000
             */
            inactivityMs?: number | null;
            /**
             * Format: uint64
             * @description Time for the whole turn. 300 s by default.
             * @default 300000
             */
            turnMs?: number | null;
            /**
             * Format: uint64
             * @description Time without a sign of life while a tool call is in flight. 30 min by default.
             * @default 1800000
             */
            toolMs?: number | null;
            /**
             * @description Action when one runs out.
             * @default abortTurn
             */
            action?: components["schemas"]["TimeoutAction"];
            /**
             * Format: uint64
             * @description Length of silence in a turn that causes a `session:silent` event. 3 s by default.
             * @default 3000
             */
            silenceMs?: number | null;
            /**
             * Format: uint64
             * @description Interval at which that event is repeated. 5 s by default.
             * @default 5000
             */
            silenceRepeatMs?: number | null;
        };
        /**
         * @description A tool call of a turn.
         * @example {
         *       "id": "call-1",
         *       "name": "Bash",
         *       "input": {
         *         "command": "ls"
         *       },
         *       "output": "README.md\n",
         *       "state": "completed"
         *     }
         */
        ToolCall: {
            /** @description Id of the call within the session. */
            id: string;
            /** @description The tool's machine name if the agent gives one, else its kind. */
            name: string;
            /** @description Input as the agent gave it; `null` if it gave none. */
            input: unknown;
            /** @description Output so far, as text. */
            output: string;
            /** @description Status of the call. */
            state: components["schemas"]["ToolStatus"];
        };
        /**
         * @description State of a tool call.
         * @example pending
         */
        ToolStatus: "pending" | "inProgress" | "completed" | "failed";
        /**
         * @description Answer to `GET /v1/sessions/{id}/transcript`.
         * @example {
         *       "transcript": "user: hello\n"
         *     }
         */
        TranscriptResponse: {
            /** @description Conversation as text, from the events that are still kept. */
            transcript: string;
        };
        /**
         * @description Model usage of one turn.
         * @example {
         *       "turn": 1,
         *       "usage": {
         *         "inputTokens": 1200,
         *         "outputTokens": 340,
         *         "cachedInputTokens": null,
         *         "cacheReadTokens": null,
         *         "cacheWriteTokens": null,
         *         "costUsd": 0.25,
         *         "costSource": null
         *       }
         *     }
         */
        TurnUsage: {
            /**
             * Format: uint64
             * @description Number of the turn; 0 for usage outside any turn.
             */
            turn: number;
            /** @description Tokens and cost since the turn's beginning. */
            usage: components["schemas"]["Usage"];
        };
        /**
         * @description Tokens (and cost) of a turn. `null` for what the agent does not report.
         * @example {
         *       "inputTokens": 1200,
         *       "outputTokens": 340,
         *       "cachedInputTokens": null,
         *       "cacheReadTokens": null,
         *       "cacheWriteTokens": null,
         *       "costUsd": 0.25,
         *       "costSource": null
         *     }
         */
        Usage: {
            /**
             * Format: uint64
             * @description Tokens read: all of them, with those from a cache and those put into one.
             * @default null
             */
            inputTokens: number | null;
            /**
             * Format: uint64
             * @description Tokens written, with those of the thinking.
             * @default null
             */
            outputTokens: number | null;
            /**
             * Format: uint64
             * @description Part of the input that came from a cache.
             * @default null
             */
            cachedInputTokens: number | null;
            /**
             * Format: uint64
             * @description The same number, by its name in earlier releases.
             * @default null
             */
            cacheReadTokens: number | null;
            /**
             * Format: uint64
             * @description Part of the input that was put into a cache.
             * @default null
             */
            cacheWriteTokens: number | null;
            /**
             * Format: double
             * @description Cost in US dollars: the agent's own, else by the user's prices; `null` if neither is known.
             * @default null
             */
            costUsd: number | null;
            /**
             * @description Source of the cost; `null` without one.
             * @default null
             */
            costSource: components["schemas"]["CostSource"] | null;
        };
        /**
         * @description Answer to `GET /v1/version`.
         * @example {
         *       "version": "text"
         *     }
         */
        VersionResponse: {
            /** @description Version of the server. */
            version: string;
        };
        /**
         * @description Answer to a webhook.
         * @example {
         *       "outcome": "accepted",
         *       "id": "72d3162e-cc78-11e3-81ab-4c9367dc0958"
         *     }
         */
        WebhookReceipt: {
            /** @description `accepted`, or `duplicate` for a delivery that is in the stream already. */
            outcome: string;
            /** @description Id of the delivery. */
            id: string;
        };
        /**
         * @description Receiver or sender, as it is listed.
         * @example {
         *       "name": "ops",
         *       "direction": "out",
         *       "kind": "url",
         *       "counts": {
         *         "delivered": 7,
         *         "retried": 1
         *       },
         *       "waiting": 0,
         *       "lastError": null
         *     }
         */
        WebhookStatus: {
            /** @description Name in `webhooks.toml`. */
            name: string;
            /** @description `in`, or `out`; `callbacks` for those of asks. */
            direction: string;
            /** @description The sender, or `url` or `command`. */
            kind: string;
            /** @description Deliveries since the server's start, by outcome: `accepted`, `duplicate`, `verified`, `limited`, `refused`, `failed` of one that comes in; `delivered`, `retried`, `abandoned` of one that goes out. */
            counts: {
                [key: string]: number;
            };
            /**
             * Format: uint
             * @description Messages that wait, as far as they are read.
             */
            waiting: number;
            /** @description The last failure. */
            lastError: string | null;
        };
        /**
         * @description Answer to `GET /v1/whoami`.
         * @example {
         *       "name": "main",
         *       "role": "read",
         *       "user": null
         *     }
         */
        WhoamiResponse: {
            /** @description Name of the caller: of a token, a login, a user; `host` on the local socket. */
            name: string;
            /** @description What the caller may do. */
            role: components["schemas"]["Role"];
            /** @description The one user whose sessions the caller sees; `null` for those of all. */
            user: string | null;
        };
        /**
         * @description Changes in a workspace that are not applied.
         * @example {
         *       "files": [],
         *       "patch": null,
         *       "leftOut": [
         *         "text"
         *       ]
         *     }
         */
        WorkspaceDiff: {
            /** @description Changed files, by path. Files that git ignores are left out. */
            files: components["schemas"]["ChangedFile"][];
            /** @description The changes as a patch of git's; `null` if it is longer than 16 MiB. */
            patch: string | null;
            /** @description Repositories within the tree: changes in them are neither shown nor applied. */
            leftOut: string[];
        };
        /**
         * @description Workspace of a session.
         * @example {
         *       "sessionId": "s-1",
         *       "userId": "ada",
         *       "kind": "off",
         *       "source": "text",
         *       "path": "/home/ada/project/notes.md",
         *       "cwd": "/home/ada/project",
         *       "createdAt": "2026-01-02T03:04:05.678Z",
         *       "changedFiles": null
         *     }
         */
        WorkspaceInfo: {
            /** @description Session whose agent works in it. */
            sessionId: components["schemas"]["SessionId"];
            /** @description Label of the session's user. */
            userId: string | null;
            /** @description Kind of the workspace. */
            kind: components["schemas"]["WorkspaceKind"];
            /** @description Tree of the user's that it was made from, and that changes are applied to. */
            source: string;
            /** @description Tree that the agent works in. */
            path: string;
            /** @description Working directory of the agent: the tree, or a directory in it. */
            cwd: string;
            /**
             * Format: date-time
             * @description Time at which it was made. RFC 3339.
             */
            createdAt: string;
            /**
             * Format: uint64
             * @description Number of changed files that are not applied; `null` where it could not be found out.
             */
            changedFiles: number | null;
        };
        /**
         * @description Tree that an agent works in.
         * @example off
         */
        WorkspaceKind: "off" | "copy" | "worktree" | "overlay";
        /**
         * @description Answer to `POST /v1/sessions/{id}/workspace/apply` and `DELETE /v1/sessions/{id}/workspace`.
         * @example {
         *       "source": "text",
         *       "files": null
         *     }
         */
        WorkspaceResult: {
            /** @description Tree of the user's that the workspace was made from. */
            source: string;
            /**
             * Format: uint64
             * @description Number of changed files: those that were applied, or removed without; `null` where they cannot be counted.
             */
            files: number | null;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type AbortPolicy = components['schemas']['AbortPolicy'];
export type AbortRequest = components['schemas']['AbortRequest'];
export type AgentInstance = components['schemas']['AgentInstance'];
export type AgentSandbox = components['schemas']['AgentSandbox'];
export type AgentSessionConfig = components['schemas']['AgentSessionConfig'];
export type AgentSupport = components['schemas']['AgentSupport'];
export type Answer = components['schemas']['Answer'];
export type AppendRequest = components['schemas']['AppendRequest'];
export type AppendResponse = components['schemas']['AppendResponse'];
export type AttachCommandResponse = components['schemas']['AttachCommandResponse'];
export type Budget = components['schemas']['Budget'];
export type BudgetAction = components['schemas']['BudgetAction'];
export type BudgetKind = components['schemas']['BudgetKind'];
export type ChangedFile = components['schemas']['ChangedFile'];
export type CheckVerdict = components['schemas']['CheckVerdict'];
export type ConfigSetting = components['schemas']['ConfigSetting'];
export type ContainerEngine = components['schemas']['ContainerEngine'];
export type ContainerRemoval = components['schemas']['ContainerRemoval'];
export type ContainerStatus = components['schemas']['ContainerStatus'];
export type Containment = components['schemas']['Containment'];
export type ContainmentLayer = components['schemas']['ContainmentLayer'];
export type ContainmentStatus = components['schemas']['ContainmentStatus'];
export type CostSource = components['schemas']['CostSource'];
export type DaemonDescription = components['schemas']['DaemonDescription'];
export type DoctorCheck = components['schemas']['DoctorCheck'];
export type DrainedNode = components['schemas']['DrainedNode'];
export type EndReason = components['schemas']['EndReason'];
export type EnvVars = components['schemas']['EnvVars'];
export type Envelope = components['schemas']['Envelope'];
export type EscapeMark = components['schemas']['EscapeMark'];
export type EventPage = components['schemas']['EventPage'];
export type ExitStatus = components['schemas']['ExitStatus'];
export type FileChange = components['schemas']['FileChange'];
export type FleetNode = components['schemas']['FleetNode'];
export type FleetSession = components['schemas']['FleetSession'];
export type ForgottenNode = components['schemas']['ForgottenNode'];
export type FreeStreamInfo = components['schemas']['FreeStreamInfo'];
export type Hardening = components['schemas']['Hardening'];
export type HealthResponse = components['schemas']['HealthResponse'];
export type HoldLine = components['schemas']['HoldLine'];
export type Home = components['schemas']['Home'];
export type HomePart = components['schemas']['HomePart'];
export type HostDeath = components['schemas']['HostDeath'];
export type ImportRequest = components['schemas']['ImportRequest'];
export type ImportResponse = components['schemas']['ImportResponse'];
export type InstalledAgent = components['schemas']['InstalledAgent'];
export type InstanceStatus = components['schemas']['InstanceStatus'];
export type KeyboardWish = components['schemas']['KeyboardWish'];
export type KillCause = components['schemas']['KillCause'];
export type KillRequest = components['schemas']['KillRequest'];
export type Lifecycle = components['schemas']['Lifecycle'];
export type LimitAction = components['schemas']['LimitAction'];
export type LimitForm = components['schemas']['LimitForm'];
export type LimitInForce = components['schemas']['LimitInForce'];
export type LimitKind = components['schemas']['LimitKind'];
export type Limits = components['schemas']['Limits'];
export type ListeningSocket = components['schemas']['ListeningSocket'];
export type LoginLinkRequest = components['schemas']['LoginLinkRequest'];
export type LoginLinkResponse = components['schemas']['LoginLinkResponse'];
export type McpServer = components['schemas']['McpServer'];
export type McpTransport = components['schemas']['McpTransport'];
export type ModelApi = components['schemas']['ModelApi'];
export type ModelChange = components['schemas']['ModelChange'];
export type ModelDescription = components['schemas']['ModelDescription'];
export type ModelSettings = components['schemas']['ModelSettings'];
export type MoveRequest = components['schemas']['MoveRequest'];
export type MovedSession = components['schemas']['MovedSession'];
export type NetworkAccess = components['schemas']['NetworkAccess'];
export type NetworkRule = components['schemas']['NetworkRule'];
export type NewModel = components['schemas']['NewModel'];
export type NodeName = components['schemas']['NodeName'];
export type NodePresence = components['schemas']['NodePresence'];
export type ObserverKind = components['schemas']['ObserverKind'];
export type OnAgentExit = components['schemas']['OnAgentExit'];
export type OnDetach = components['schemas']['OnDetach'];
export type OnMissing = components['schemas']['OnMissing'];
export type OnUsageLimit = components['schemas']['OnUsageLimit'];
export type OpenPermission = components['schemas']['OpenPermission'];
export type Operation = components['schemas']['Operation'];
export type PermissionAnswer = components['schemas']['PermissionAnswer'];
export type PermissionMode = components['schemas']['PermissionMode'];
export type PermissionOption = components['schemas']['PermissionOption'];
export type PermissionOptionKind = components['schemas']['PermissionOptionKind'];
export type PermissionPolicy = components['schemas']['PermissionPolicy'];
export type PermissionReply = components['schemas']['PermissionReply'];
export type PermissionRule = components['schemas']['PermissionRule'];
export type ProblemDetails = components['schemas']['ProblemDetails'];
export type ProcessDetails = components['schemas']['ProcessDetails'];
export type ProcessId = components['schemas']['ProcessId'];
export type ProcessOutcome = components['schemas']['ProcessOutcome'];
export type ProcessStatus = components['schemas']['ProcessStatus'];
export type ProcessUse = components['schemas']['ProcessUse'];
export type Profile = components['schemas']['Profile'];
export type ProfileContainer = components['schemas']['ProfileContainer'];
export type ProfileDescription = components['schemas']['ProfileDescription'];
export type ProfileLimits = components['schemas']['ProfileLimits'];
export type ProfilePermissions = components['schemas']['ProfilePermissions'];
export type ProfileRule = components['schemas']['ProfileRule'];
export type ProfileSandbox = components['schemas']['ProfileSandbox'];
export type ProfileTimeouts = components['schemas']['ProfileTimeouts'];
export type PromptAccepted = components['schemas']['PromptAccepted'];
export type PromptMode = components['schemas']['PromptMode'];
export type PromptPart = components['schemas']['PromptPart'];
export type PromptRequest = components['schemas']['PromptRequest'];
export type Proof = components['schemas']['Proof'];
export type QueuedPrompt = components['schemas']['QueuedPrompt'];
export type ReadyResponse = components['schemas']['ReadyResponse'];
export type ReapedBy = components['schemas']['ReapedBy'];
export type Receipt = components['schemas']['Receipt'];
export type ReceiptEntry = components['schemas']['ReceiptEntry'];
export type RecordChange = components['schemas']['RecordChange'];
export type RecordedReceipt = components['schemas']['RecordedReceipt'];
export type RememberedKill = components['schemas']['RememberedKill'];
export type Restart = components['schemas']['Restart'];
export type ResumeFallback = components['schemas']['ResumeFallback'];
export type ResumeFrom = components['schemas']['ResumeFrom'];
export type ResumeOptions = components['schemas']['ResumeOptions'];
export type ResumeRequest = components['schemas']['ResumeRequest'];
export type Role = components['schemas']['Role'];
export type RuleDecision = components['schemas']['RuleDecision'];
export type SandboxMode = components['schemas']['SandboxMode'];
export type SandboxStatus = components['schemas']['SandboxStatus'];
export type Secret = components['schemas']['Secret'];
export type SessionContainer = components['schemas']['SessionContainer'];
export type SessionId = components['schemas']['SessionId'];
export type SessionInfo = components['schemas']['SessionInfo'];
export type SessionMetrics = components['schemas']['SessionMetrics'];
export type SessionMount = components['schemas']['SessionMount'];
export type SessionOrder = components['schemas']['SessionOrder'];
export type SessionPermission = components['schemas']['SessionPermission'];
export type SessionPhase = components['schemas']['SessionPhase'];
export type SessionRecord = components['schemas']['SessionRecord'];
export type SessionSandbox = components['schemas']['SessionSandbox'];
export type SessionSnapshot = components['schemas']['SessionSnapshot'];
export type SessionState = components['schemas']['SessionState'];
export type SessionStatus = components['schemas']['SessionStatus'];
export type SignalRequest = components['schemas']['SignalRequest'];
export type SignalResponse = components['schemas']['SignalResponse'];
export type SlashCommand = components['schemas']['SlashCommand'];
export type SnapshotResume = components['schemas']['SnapshotResume'];
export type SocketProtocol = components['schemas']['SocketProtocol'];
export type StayingSession = components['schemas']['StayingSession'];
export type SteerRequest = components['schemas']['SteerRequest'];
export type StopProgressLine = components['schemas']['StopProgressLine'];
export type StopReason = components['schemas']['StopReason'];
export type StopRequest = components['schemas']['StopRequest'];
export type StoppedSession = components['schemas']['StoppedSession'];
export type Surface = components['schemas']['Surface'];
export type SuspendRequest = components['schemas']['SuspendRequest'];
export type TerminalConfig = components['schemas']['TerminalConfig'];
export type TerminalSize = components['schemas']['TerminalSize'];
export type TimeoutAction = components['schemas']['TimeoutAction'];
export type TimeoutKind = components['schemas']['TimeoutKind'];
export type Timeouts = components['schemas']['Timeouts'];
export type ToolCall = components['schemas']['ToolCall'];
export type ToolStatus = components['schemas']['ToolStatus'];
export type TranscriptResponse = components['schemas']['TranscriptResponse'];
export type TurnUsage = components['schemas']['TurnUsage'];
export type Usage = components['schemas']['Usage'];
export type VersionResponse = components['schemas']['VersionResponse'];
export type WebhookReceipt = components['schemas']['WebhookReceipt'];
export type WebhookStatus = components['schemas']['WebhookStatus'];
export type WhoamiResponse = components['schemas']['WhoamiResponse'];
export type WorkspaceDiff = components['schemas']['WorkspaceDiff'];
export type WorkspaceInfo = components['schemas']['WorkspaceInfo'];
export type WorkspaceKind = components['schemas']['WorkspaceKind'];
export type WorkspaceResult = components['schemas']['WorkspaceResult'];
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
