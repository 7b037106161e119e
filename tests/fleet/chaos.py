"""A fleet under random faults: what its readers see, and who works on its sessions.

Three nats-servers and four daemons run on the loopback device of a network namespace of their own; each node reaches the servers at addresses
of its own, which are blocked to cut it off, and each server reaches the others so. Every session has a client that prompts it through any node, and a reader that follows its
events through any node, and goes on at another one by the offset. Other readers look at older events again. tests/fleet/run starts this.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

NODES = ["a", "b", "c", "d"]
SERVERS = [1, 2, 3]
# Longest wait for one answer; a node passes a request on for 4 s at the most.
ANSWER = 15
# Longest time after the last fault until all sessions work again.
SETTLE = 240

options = None
work = None


def clock():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Findings:
    """What is wrong, and what was counted."""

    def __init__(self):
        self.wrong = collections.Counter()
        self.counts = collections.Counter()
        self.begin = clock()

    def log(self, text):
        print(f"{clock() - self.begin:8.1f} {text}", file=self.file, flush=True)

    def say(self, text):
        self.log(text)
        print(f"fleet: {text}", flush=True)

    def fail(self, kind, text):
        self.wrong[kind] += 1
        if self.wrong[kind] <= 20:
            self.say(f"WRONG: {kind}: {text}")


findings = Findings()


# Processes.


def spawn(arguments, name, env=None):
    """Starts a program, whose output goes to a file."""
    with open(work / f"{name}.log", "ab") as log:
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=work)


class Program:
    """A process of ours, which is signalled by its pidfd."""

    def __init__(self, name):
        self.name = name
        self.process = None
        self.stops = 0
        self.since = 0

    @property
    def alive(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        # Not reaped yet, so the pid is its own.
        if self.alive:
            self.process.send_signal(number)

    def kill(self):
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.stops = 0

    async def pause(self, seconds):
        """Stops it for a while. Pauses may overlap."""
        if not self.alive:
            findings.counts["faults without a victim"] += 1
            return
        process = self.process
        self.stops += 1
        self.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        # Another one may have taken its place meanwhile.
        if self.process is process and self.stops > 0:
            self.stops -= 1
            if self.stops == 0:
                self.signal(signal.SIGCONT)


class Server(Program):
    """A nats-server."""

    def __init__(self, number):
        super().__init__(f"nats-{number}")
        self.number = number
        # Each link has an address of its own, by which it is cut.
        routes = ", ".join(f"nats://{link(number, other)}:{6220 + other}" for other in SERVERS if other != number)
        (work / f"{self.name}.conf").write_text(
            f"server_name: s{number}\nlisten: 0.0.0.0:{4220 + number}\nhttp: 127.0.0.1:{8220 + number}\n"
            f'jetstream {{ store_dir: "{work}/{self.name}" }}\nping_interval: "5s"\nping_max: 2\nmax_payload: 8MB\n'
            f"cluster {{ name: chaos, listen: 0.0.0.0:{6220 + number}, no_advertise: true, routes: [{routes}] }}\n"
        )

    def start(self):
        if not self.alive:
            self.process = spawn([options.nats_server, "-c", work / f"{self.name}.conf"], self.name)

    async def cut(self, seconds):
        """Drops the packets between it and the other servers for a while. Its clients still reach it."""
        links = [link(*pair) for other in SERVERS if other != self.number for pair in ((self.number, other), (other, self.number))]
        for address in links:
            CUT_LINKS[address] += 1
            if CUT_LINKS[address] == 1:
                await nft(f"add element ip chaos links {{ {address} }}")
        await asyncio.sleep(seconds)
        for address in links:
            CUT_LINKS[address] -= 1
            if CUT_LINKS[address] == 0:
                await nft(f"delete element ip chaos links {{ {address} }}")


# How many faults cut a link between servers, by its address.
CUT_LINKS = collections.Counter()


def link(server, other):
    """Address at which a server reaches another one."""
    return f"127.1.{server}.{other}"


class Node(Program):
    """A daemon."""

    def __init__(self, name):
        super().__init__(name)
        self.place = NODES.index(name) + 1
        self.directory = work / name
        self.directory.mkdir()
        self.socket = str(self.directory / "daemon.sock")
        self.cuts = 0
        self.draining = False

    @property
    def addresses(self):
        return f"127.0.{self.place}.0/24"

    def start(self):
        if self.alive:
            return
        servers = ",".join(f"nats://127.0.{self.place}.1:{4220 + number}" for number in SERVERS)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "AGENT_PROXY_CONFIG_DIR": str(work / "config"),
            "RUST_LOG": options.log,
        }
        arguments = [options.program, "serve", "--socket", self.socket, "--state-dir", self.directory / "state"]
        fleet = ["--fleet", servers, "--node", self.name, "--take-over", "--lease", f"{options.lease}s"]
        self.process = spawn(arguments + fleet, self.name, env)
        self.since = clock()

    def fork_server(self):
        """Returns the pidfd of its fork server, if it has one."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                descriptor = os.pidfd_open(int(entry.name))
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if self.alive and int(fields[1]) == self.process.pid and b"fork server" in (entry / "cmdline").read_bytes():
                    return descriptor
                os.close(descriptor)
            except OSError:
                continue
        return None

    async def cut(self, seconds):
        """Drops its packets for a while."""
        self.cuts += 1
        if self.cuts == 1:
            await nft(f"add element ip chaos blocked {{ {self.addresses} }}")
        await asyncio.sleep(seconds)
        self.cuts -= 1
        if self.cuts == 0:
            await nft(f"delete element ip chaos blocked {{ {self.addresses} }}")


async def nft(command):
    process = await asyncio.create_subprocess_exec("nft", command, stderr=asyncio.subprocess.PIPE)
    _, error = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"nft {command}: {error.decode()}")


# HTTP over a node's socket.


class Refused(Exception):
    """An answer that is a problem, or none."""

    def __init__(self, status, text):
        super().__init__(f"{status} {text}")
        self.status = status
        self.text = text


async def connect(node, method, path, body=None, headers=()):
    """Sends a request. Returns the status, whether the answer is in chunks, and its reader."""
    reader, writer = await asyncio.open_unix_connection(node.socket, limit=16 * 1024 * 1024)
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: daemon", "Connection: close", f"Content-Length: {len(data)}", *headers]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    try:
        status = int((await reader.readline()).split()[1])
        chunked = False
        while (line := (await reader.readline()).strip()):
            chunked |= line.lower() == b"transfer-encoding: chunked"
    except BaseException as error:
        writer.close()
        # The connection ended before an answer.
        raise ConnectionError("no answer") if isinstance(error, IndexError) else error
    return status, chunked, reader, writer


async def pieces(chunked, reader):
    """Yields the body. Raises where it breaks off."""
    if not chunked:
        while (piece := await reader.read(65536)):
            yield piece
        return
    while True:
        line = await reader.readline()
        if not line:
            raise ConnectionError("broken off")
        length = int(line, 16)
        piece = await reader.readexactly(length + 2)
        if length == 0:
            return
        yield piece[:-2]


async def call(node, method, path, body=None, headers=(), within=ANSWER):
    """Sends a request, and returns its answer. Fails with Refused, or OSError where nobody knows."""
    async with asyncio.timeout(within):
        status, chunked, reader, writer = await connect(node, method, path, body, headers)
        try:
            text = b"".join([piece async for piece in pieces(chunked, reader)])
        finally:
            writer.close()
    if status >= 300:
        raise Refused(status, text.decode(errors="replace")[:600])
    return json.loads(text) if text else None


# asyncio.TimeoutError is an OSError's child of no kind.
TROUBLE = (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError)


# Sessions.


class Session:
    """A session, with what its readers have seen."""

    def __init__(self, fleet, number):
        self.fleet = fleet
        self.number = number
        self.id = f"s-{number:03}"
        self.directory = work / "sessions" / self.id
        self.directory.mkdir(parents=True)
        self.random = random.Random(f"{options.seed}/{number}")
        # Fingerprint of each event, by its offset, of whoever saw it first.
        self.seen = {}
        # Offset of the last event of the reader that follows.
        self.last = 0
        self.last_at = clock()
        self.silence = 0
        self.change = asyncio.Event()
        self.tokens = {}
        self.outcomes = {}
        self.is_ended = False
        self.is_idle = False
        self.kinds = collections.Counter()
        self.marks = []

    def note(self, line, node):
        """Takes note of an event that a reader saw, and returns it."""
        event = json.loads(line)
        offset = int(event["offset"])
        event.pop("position", None)
        print_of = zlib.crc32(json.dumps(event, sort_keys=True).encode())
        before = self.seen.setdefault(offset, print_of)
        if before != print_of:
            findings.fail("differs", f"{self.id}: event {offset} through node {node.name} is another than before: {line[:300]}")
        return offset, event

    def follow_one(self, line, node):
        offset, event = self.note(line, node)
        kind = event["type"]
        if kind == "session:gap":
            findings.fail("gap", f"{self.id}: through node {node.name}: {line[:300]}")
            offset = int(event["payload"]["to"])
        elif offset <= self.last:
            findings.fail("doubled", f"{self.id}: event {offset} after {self.last} through node {node.name}")
            return
        elif offset != self.last + 1:
            findings.fail("lost", f"{self.id}: event {offset} after {self.last} through node {node.name}")
        now = clock()
        self.silence = max(self.silence, now - self.last_at)
        self.last, self.last_at = offset, now
        self.kinds[kind] += 1
        findings.counts["events"] += 1
        if kind == "turn:started":
            self.is_idle = False
            for token in set(re.findall(rf"{self.id}\.\d+\.", event["payload"]["prompt"])):
                self.tokens.setdefault(token, []).append(offset)
        elif kind in ("session:suspended", "session:resumed"):
            self.marks.append((now, kind, event["payload"]))
        elif kind == "session:ended":
            self.is_ended = True
            findings.log(f"{self.id} ended at {offset}: {json.dumps(event['payload'].get('reason'))}")
        self.is_idle = kind == "session:idle" or self.is_idle and not kind.startswith("session:")
        self.change.set()

    async def follow(self):
        """Reads the events, through one node after the other."""
        while not self.is_ended:
            node = self.fleet.any_node(self.random)
            stays = clock() + self.random.uniform(5, 60)
            writer = None
            try:
                path = f"/v1/sessions/{self.id}/events?follow=true&from={self.last}"
                async with asyncio.timeout(ANSWER):
                    status, chunked, reader, writer = await connect(node, "GET", path)
                if status != 200:
                    findings.counts["reads refused"] += 1
                    await asyncio.sleep(0.5)
                    continue
                rest = b""
                body = pieces(chunked, reader)
                while clock() < stays and not self.is_ended:
                    async with asyncio.timeout(10):
                        piece = await anext(body, None)
                    if piece is None:
                        break
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        if line.strip():
                            self.follow_one(line.decode(), node)
            except TROUBLE as error:
                findings.counts[f"reads broken off ({type(error).__name__})"] += 1
                await asyncio.sleep(0.2)
            finally:
                if writer:
                    writer.close()

    async def look_back(self, node, begin=None):
        """Reads a page of older events through a node: they are what they were."""
        begin = self.random.randrange(self.last + 1) if begin is None else begin
        path = f"/v1/sessions/{self.id}/events?from={begin}&limit=1000"
        page = await call(node, "GET", path, headers=["Accept: application/json"])
        expected = begin + 1
        for event in page["events"]:
            offset, event = self.note(json.dumps(event), node)
            if event["type"] == "session:gap":
                findings.fail("gap", f"{self.id}: in a page from {begin} through node {node.name}: {event}")
                offset = int(event["payload"]["to"])
            elif offset != expected:
                findings.fail("lost", f"{self.id}: event {offset} in place of {expected} in a page from {begin} through node {node.name}")
            expected = offset + 1
        findings.counts["pages"] += 1
        return expected - 1, page.get("more")

    async def until(self, is_so, within):
        """Waits for events until it is so."""
        deadline = clock() + within
        while not is_so():
            self.change.clear()
            left = deadline - clock()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(left):
                    await self.change.wait()
            except asyncio.TimeoutError:
                pass
        return True

    async def prompt(self):
        """Sends one prompt, and waits for the end of its turn. Returns whether it was accepted."""
        token = f"{self.id}.{len(self.outcomes) + 1}."
        steps = [f"say {token}", f"flood {self.random.randrange(1, 12)} {self.random.randrange(1, 400)}"]
        if self.random.random() < 0.1:
            steps.append(f"run echo {token} >>turns")
        if self.random.random() < 0.2:
            steps.append(f"sleep {self.random.randrange(100, 3000)}ms")
        node = self.fleet.any_node(self.random)
        self.outcomes[token] = "unknown"
        try:
            await call(node, "POST", f"/v1/sessions/{self.id}/prompt", {"text": "\n".join(steps)})
        except Refused as error:
            kind = re.search(r'"type":"([^"]*)"', error.text)
            findings.counts[f"prompts refused: {kind[1] if kind else error.status}"] += 1
            # A status of its own: nothing was done.
            self.outcomes[token] = "unknown" if error.status >= 500 else "refused"
            return False
        except TROUBLE:
            return False
        self.outcomes[token] = "ok"
        begin = len(self.marks)
        await self.until(lambda: token in self.tokens and self.is_idle or len(self.marks) > begin or self.is_ended, 30)
        return True

    async def talk(self):
        while not self.fleet.is_quiet and not self.is_ended:
            accepted = await self.prompt()
            await asyncio.sleep(self.random.uniform(0.5, 1.5) * (options.talk if accepted else 1))

    async def works(self, deadline):
        """Waits until a prompt of this session is answered and seen."""
        while clock() < deadline and not self.is_ended:
            if await self.prompt():
                token = f"{self.id}.{len(self.outcomes)}."
                if await self.until(lambda: token in self.tokens and self.is_idle or self.is_ended, 10):
                    return not self.is_ended
            await asyncio.sleep(0.5)
        return False

    def judge(self):
        """Compares the prompts that were accepted with those in the log."""
        for token, outcome in self.outcomes.items():
            times = len(self.tokens.get(token, []))
            findings.counts[f"prompts {outcome}"] += 1
            if outcome == "ok" and times == 0:
                findings.fail("prompt lost", f"{self.id}: {token} was accepted")
            if times > 1:
                findings.fail("prompt doubled", f"{self.id}: {token} at {self.tokens[token]}")
            if outcome != "ok" and times:
                findings.counts[f"prompts {outcome}, and in the log"] += 1


# Faults.


class Fault:
    """One fault of the plan: all that chance decides is in it."""

    KINDS = {
        "kill-node": 18,
        "kill-fork-server": 14,
        "stop-node": 13,
        "stop-node-shortly": 8,
        "cut-node": 14,
        "cut-node-shortly": 8,
        "kill-leader": 10,
        "stop-server": 6,
        "cut-server": 5,
        "cut-server-shortly": 5,
        "kill-server": 4,
        "kill-node-and-leader": 3,
        "restart-engine": 2,
    }

    def __init__(self, chance):
        kinds = options.only or list(self.KINDS)
        self.kind = chance.choices(kinds, [self.KINDS[kind] for kind in kinds])[0]
        self.node = chance.choice(NODES)
        self.server = chance.choice(SERVERS)
        # Beyond the lease, or well within it.
        self.long = options.lease * chance.uniform(1.1, 2.2)
        self.short = options.lease * chance.uniform(0.1, 0.5)
        # Back before anybody else may have its sessions, or long after.
        self.back = options.lease * chance.choice([chance.uniform(0.05, 0.5), chance.uniform(1.5, 3.5)])
        self.pause = options.pace * chance.uniform(0.3, 1.7)

    async def run(self, fleet):
        node, server = fleet.nodes[self.node], fleet.servers[self.server]
        match self.kind:
            case "kill-node":
                await fleet.kill_node(node, self.back)
            case "kill-fork-server":
                descriptor = node.fork_server()
                if descriptor is None:
                    findings.counts["faults without a victim"] += 1
                else:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    os.close(descriptor)
            case "stop-node":
                await node.pause(self.long)
            case "stop-node-shortly":
                await node.pause(self.short)
            case "cut-node":
                await node.cut(self.long)
            case "cut-node-shortly":
                await node.cut(self.short)
            case "kill-leader":
                await fleet.kill_server(await fleet.leader() or server, self.back)
            case "kill-server":
                await fleet.kill_server(server, self.short)
            case "stop-server":
                await server.pause(self.short)
            case "cut-server":
                await server.cut(self.long)
            case "cut-server-shortly":
                await server.cut(self.short)
            case "kill-node-and-leader":
                leader = await fleet.leader() or server
                await asyncio.gather(fleet.kill_node(node, self.back), fleet.kill_server(leader, self.short))
            case "restart-engine":
                servers = fleet.servers.values()
                for server in servers:
                    server.kill()
                await asyncio.sleep(self.short)
                for server in servers:
                    server.start()


class Fleet:
    def __init__(self):
        self.servers = {number: Server(number) for number in SERVERS}
        self.nodes = {name: Node(name) for name in NODES}
        self.sessions = []
        self.is_quiet = False
        self.chance = random.Random(options.seed)
        self.tasks = []

    def any_node(self, chance):
        alive = [node for node in self.nodes.values() if node.alive and clock() - node.since > 0.3]
        return chance.choice(alive or list(self.nodes.values()))

    async def leader(self):
        """Returns the server that leads the stream of the events."""
        for server in self.servers.values():
            if not server.alive or server.stops:
                continue
            try:
                async with asyncio.timeout(1):
                    reader, writer = await asyncio.open_connection("127.0.0.1", 8220 + server.number, limit=1 << 24)
                    writer.write(b"GET /jsz?streams=true HTTP/1.0\r\n\r\n")
                    text = (await reader.read(-1)).partition(b"\r\n\r\n")[2]
                    writer.close()
                for account in json.loads(text).get("account_details", []):
                    for stream in account.get("stream_detail", []):
                        if stream["name"] == "EV1" and stream.get("cluster", {}).get("leader"):
                            return self.servers[int(stream["cluster"]["leader"][1:])]
            except TROUBLE:
                continue
        return None

    async def kill_node(self, node, back):
        node.kill()
        await asyncio.sleep(back)
        node.start()

    async def kill_server(self, server, back):
        server.kill()
        await asyncio.sleep(back)
        server.start()

    async def ready(self, within=120):
        """Waits until every node sees all of them alive."""
        deadline = clock() + within
        for node in self.nodes.values():
            while True:
                try:
                    rows = await call(node, "GET", "/v1/fleet/nodes")
                    if sum(row["presence"] == "alive" for row in rows) == len(NODES):
                        break
                except (*TROUBLE, Refused):
                    pass
                if not node.alive:
                    findings.log(f"node {node.name} has exited with {node.process.poll() if node.process else None}: it is started again")
                    node.start()
                if clock() > deadline:
                    await self.describe()
                    raise RuntimeError(f"node {node.name} does not see the others within {within} s")
                await asyncio.sleep(0.2)

    async def describe(self):
        """Logs what each node knows of the others, for whoever looks for a fault."""
        for node in self.nodes.values():
            try:
                for row in await call(node, "GET", "/v1/fleet/nodes"):
                    findings.log(f"node {node.name} knows {row['node']}: {row['presence']}, silent for {row['silentSeconds']} s, {row['sessions']} sessions")
            except (*TROUBLE, Refused) as error:
                findings.log(f"node {node.name} does not say what it knows: {error!r}")

    async def begin(self):
        await nft("add table ip chaos")
        await nft("add set ip chaos blocked { type ipv4_addr; flags interval; }")
        await nft("add set ip chaos links { type ipv4_addr; }")
        await nft("add chain ip chaos out { type filter hook output priority 0; }")
        for cut in ("blocked", "links"):
            await nft(f"add rule ip chaos out ip daddr @{cut} drop")
            await nft(f"add rule ip chaos out ip saddr @{cut} drop")
        for server in self.servers.values():
            server.start()
        await asyncio.sleep(1)
        for node in self.nodes.values():
            node.start()
        await self.ready()
        self.sessions = [Session(self, number) for number in range(options.sessions)]
        gate = asyncio.Semaphore(4)

        async def start(session):
            async with gate:
                config = {"sessionId": session.id, "agent": "kept", "home": "own", "cwd": str(session.directory)}
                path = f"/v1/sessions?node={NODES[session.number % len(NODES)]}"
                await call(self.any_node(session.random), "POST", path, config, within=60)

        await asyncio.gather(*map(start, self.sessions))
        findings.say(f"{len(self.sessions)} sessions on {len(NODES)} nodes after {clock() - findings.begin:.1f} s")
        for session in self.sessions:
            session.last_at = clock()
            self.spawn(session.follow())
            self.spawn(session.talk())
        if self.sessions:
            self.spawn(self.look_back())
            self.spawn(self.report())
        self.spawn(self.mind_nodes())

    def spawn(self, work):
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task

    async def look_back(self):
        while True:
            session = self.chance.choice(self.sessions)
            try:
                await session.look_back(self.any_node(self.chance))
            except (*TROUBLE, Refused):
                findings.counts["pages refused"] += 1
            await asyncio.sleep(0.2)

    async def mind_nodes(self):
        """Starts a daemon again that has ended by itself, as a service manager does: one that cannot join ends."""
        while True:
            await asyncio.sleep(1)
            for node in self.nodes.values():
                if node.process and node.process.poll() not in (None, -signal.SIGKILL):
                    findings.counts[f"nodes that ended by themselves ({node.process.poll()})"] += 1
                    findings.log(f"node {node.name} has ended by itself: {node.process.poll()}")
                    node.start()

    async def report(self):
        while True:
            await asyncio.sleep(30)
            await self.describe()
            silent = sorted(clock() - session.last_at for session in self.sessions)
            counts = findings.counts
            load = os.getloadavg()[0]
            findings.say(
                f"{counts['faults']} faults, {counts['events']} events, silent for {silent[len(silent) // 2]:.1f} s (median),"
                f" {silent[-1]:.1f} s (longest); wrong: {dict(findings.wrong)}; load {load:.0f}"
            )

    async def throw(self):
        """Throws the faults of the plan: each begins a while after the one before, whatever became of that."""
        plan = [Fault(self.chance) for _ in range(options.faults)]
        under_way = []
        begin = clock()
        for fault in plan:
            findings.counts["faults"] += 1
            findings.counts[f"fault {fault.kind}"] += 1
            findings.log(f"fault {findings.counts['faults']}: {fault.kind} {fault.node} {fault.server}")
            under_way.append(asyncio.create_task(fault.run(self)))
            await asyncio.sleep(fault.pause)
            if options.minutes and clock() - begin > options.minutes * 60:
                findings.say(f"the time is over after {findings.counts['faults']} of {len(plan)} faults")
                break
        findings.counts["seconds of faults"] = round(clock() - begin)
        await asyncio.gather(*under_way)

    async def heal(self):
        for server in self.servers.values():
            server.start()
        for node in self.nodes.values():
            node.start()
        await self.ready(SETTLE)

    async def settle(self):
        """Waits until all sessions work again, and all readers have all of it."""
        begin = clock()
        self.is_quiet = True
        deadline = begin + SETTLE
        works = await asyncio.gather(*(session.works(deadline) for session in self.sessions))
        findings.counts["seconds until all work again"] = round(clock() - begin, 1)
        for session, is_working in zip(self.sessions, works):
            if not is_working and not session.is_ended:
                findings.fail("stuck", f"{session.id} does not work again within {SETTLE} s")
            if session.is_ended:
                findings.fail("ended", f"{session.id} has ended")
        gate = asyncio.Semaphore(8)
        readings = [self.read_whole(session, node, gate) for session in self.sessions for node in self.nodes.values()]
        await asyncio.gather(*readings)

    async def read_whole(self, session, node, gate):
        """Reads all events of a session through a node."""
        async with gate:
            await self.read_pages(session, node)

    async def read_pages(self, session, node):
        last, more, tries = 0, True, 0
        while more:
            try:
                last, more = await session.look_back(node, last)
            except (*TROUBLE, Refused) as error:
                tries += 1
                if tries > 20:
                    return findings.fail("unreadable", f"{session.id} through node {node.name}: {error}")
                await asyncio.sleep(0.5)
        if last < session.last:
            findings.fail("lost", f"{session.id}: node {node.name} has events up to {last}, and {session.last} were seen")

    async def end(self):
        """Kills the sessions through any node, ends the daemons, and looks for what is left."""
        for session in self.sessions:
            if session.is_ended:
                continue
            try:
                receipt = await call(self.any_node(self.chance), "POST", f"/v1/sessions/{session.id}/kill", {}, within=60)
                if receipt["survivors"]:
                    findings.fail("survivors", f"{session.id}: {receipt['survivors']}")
            except (*TROUBLE, Refused) as error:
                findings.fail("not killed", f"{session.id}: {error!r}")
        await asyncio.gather(*(session.until(lambda: session.is_ended, 30) for session in self.sessions))
        for session in self.sessions:
            if not session.is_ended:
                findings.fail("no end", f"{session.id}: its end is not seen")
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        begin = clock()
        for node in self.nodes.values():
            node.signal(signal.SIGTERM)
        for node in self.nodes.values():
            try:
                await asyncio.to_thread(node.process.wait, 60)
                findings.log(f"node {node.name} has ended after {clock() - begin:.1f} s")
            except subprocess.TimeoutExpired:
                findings.fail("no end", f"node {node.name} does not end by SIGTERM")
                node.kill()
        for server in self.servers.values():
            server.kill()
        deadline = clock() + 20
        while (left := others()) and clock() < deadline:
            await asyncio.sleep(0.2)
        for process in left:
            findings.fail("process left", process)
        for session in self.sessions:
            session.judge()
        judge_owners()


def others():
    """Lists the processes of this namespace but for this program and its parent."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (1, os.getpid()):
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                found.append(f"{entry.name} {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()[:200]}")
        except OSError:
            continue
    return found


AGENT = """#!/bin/sh
# Holds a lock of its session as long as it and what it starts live: who finds it held is a second owner.
exec 9>>owner.lock
if flock --nonblock 9; then
    echo "$$ $HOME $(cut -d' ' -f1 /proc/uptime)" >>owners
else
    echo "$$ $HOME $(cut -d' ' -f1 /proc/uptime)" >>overlaps
fi
exec PROGRAM fake-agent --modes --store chats
"""


def judge_owners():
    for session in (work / "sessions").glob("*"):
        owners, overlaps = session / "owners", session / "overlaps"
        findings.counts["lives of agents"] += len(owners.read_text().splitlines()) if owners.exists() else 0
        if overlaps.exists():
            for line in overlaps.read_text().splitlines():
                findings.fail("two owners", f"{session.name}: {line}; before: {owners.read_text().splitlines()[-3:]}")


async def chaos(fleet):
    await fleet.begin()
    await asyncio.sleep(options.warm_up)
    await fleet.throw()
    await fleet.heal()
    findings.say("all is healed")
    await fleet.settle()
    await fleet.end()


def summary(fleet):
    counts = findings.counts
    kinds = ", ".join(f"{kind} {counts[f'fault {kind}']}" for kind in Fault.KINDS if counts[f"fault {kind}"])
    suspended = sum(session.kinds["session:suspended"] for session in fleet.sessions)
    resumed = sum(session.kinds["session:resumed"] for session in fleet.sessions)
    for name in sorted(counts):
        findings.say(f"  {name}: {counts[name]}")
    wrong = findings.wrong
    print(
        f"fleet chaos: seed {options.seed}: {counts['faults']} faults in {counts['seconds of faults']} s at a lease of {options.lease:g} s ({kinds});"
        f" {len(fleet.sessions)} sessions, {counts['events']} events, {suspended} suspended, {resumed} resumed,"
        f" longest silence {max((session.silence for session in fleet.sessions), default=0):.1f} s,"
        f" all working {counts['seconds until all work again']} s after the last heal;"
        f" prompts accepted {counts['prompts ok']}, lost {wrong['prompt lost']}, doubled {wrong['prompt doubled']};"
        f" events lost {wrong['lost'] + wrong['gap']}, doubled or out of order {wrong['doubled']}, changed {wrong['differs']};"
        f" two owners {wrong['two owners']}; processes left {wrong['process left']}; wrong in all: {sum(wrong.values())}",
        flush=True,
    )


def read_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--nats-server", required=True)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--lease", type=float, default=6)
    parser.add_argument("--pace", type=float, default=None, help="mean time between two faults, in seconds")
    parser.add_argument("--minutes", type=float, default=None, help="no fault begins after this time")
    parser.add_argument("--talk", type=float, default=3, help="mean pause of a client after a turn, in seconds")
    parser.add_argument("--warm-up", type=float, default=5)
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, help="kinds of faults")
    parser.add_argument("--log", default="warn,fleet=info", help="RUST_LOG of the nodes")
    parser.add_argument("--work", required=True, help="directory for all that is written, which is removed")
    parser.add_argument("--keep", default=None, help="another one, which stays")
    parser.add_argument("--measure", default=None, help="a scenario, in place of chaos")
    parser.add_argument("--many", type=int, default=10000, help="sessions of the scenario `figures`")
    return parser.parse_args()


async def run():
    fleet = Fleet()
    try:
        if options.measure:
            import scenarios

            await scenarios.measure(options.measure, fleet)
        else:
            await chaos(fleet)
    except Exception as error:
        findings.fail("broken off", repr(error))
        import traceback

        traceback.print_exc()
    if not options.measure:
        summary(fleet)
    return 1 if findings.wrong else 0


def main():
    global options, work
    options = read_options()
    # A fault every 0.9 of a lease: most overlap.
    options.pace = options.pace or options.lease * 0.9
    work = Path(options.keep or options.work)
    work.mkdir(exist_ok=True)
    # This is the first process of its namespace, which gets all orphans: another one does the work.
    child = os.fork()
    if child:
        status = 1
        while True:
            try:
                pid, how = os.wait()
            except ChildProcessError:
                break
            if pid == child:
                status = os.waitstatus_to_exitcode(how)
                break
        sys.exit(1 if status else 0)
    (work / "config").mkdir(exist_ok=True)
    agent = work / "agent"
    agent.write_text(AGENT.replace("PROGRAM", options.program))
    agent.chmod(0o755)
    (work / "config" / "agents.toml").write_text(f"id = 'kept'\nprotocol = 'acp'\ncmd = ['{agent}']\n")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    findings.file = open(work / "chaos.log", "w")
    os._exit(asyncio.run(run()))


if __name__ == "__main__":
    main()
