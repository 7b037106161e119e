"""Starts the daemon as systemd does, with a socket in LISTEN_FDS and a NOTIFY_SOCKET."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

program, work = sys.argv[1], Path(sys.argv[2])
directory = work / "run"
directory.mkdir(mode=0o700)
path = str(directory / "daemon.sock")
ENV = {"PATH": os.environ["PATH"], "HOME": str(work), "AGENT_PROXY_CONFIG_DIR": str(work / "config")}


class Daemon(HTTPConnection):
    """Connection to the daemon's socket."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(path)

    def call(self, method, target, body=None):
        self.request(method, target, body and json.dumps(body), {"Host": "daemon"})
        answer = self.getresponse()
        text = answer.read()
        assert answer.status < 300, text
        return json.loads(text)


def start(listeners, notify, *args):
    """Starts `serve` with these listeners as descriptors 3, 4, …"""

    def prepare():
        for number, listener in enumerate(listeners, 3):
            os.dup2(listener.fileno(), number, inheritable=True)
        os.environ["LISTEN_PID"] = str(os.getpid())

    # The pid is known in the child alone.
    launcher = 'LISTEN_PID=$$ exec "$0" "$@"'
    env = {**ENV, "LISTEN_FDS": str(len(listeners)), "NOTIFY_SOCKET": notify.getsockname()}
    command = ["/bin/sh", "-c", launcher, program, "serve", *args]
    return subprocess.Popen(
        command, env=env, preexec_fn=prepare, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def listening(name):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(16)
    return listener


def descriptors(pid):
    """What a process has open, but for what it closes meanwhile."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[fd] = os.readlink(f"/proc/{pid}/fd/{fd}")
    return found


notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.settimeout(60)
notify.bind(str(work / "notify"))
listener = listening(path)
inode = os.stat(path).st_ino

for round in range(2):
    # The client is there before the daemon, as with socket activation.
    client = Daemon("daemon")
    client.connect()
    daemon = start([listener], notify, "--socket", path)
    assert notify.recv(4096).splitlines() == [b"READY=1"]
    assert client.call("GET", "/v1/health")["pid"] == daemon.pid
    info = client.call("POST", "/v1/sessions", {"sessionId": "s-1", "agent": "command", "command": ["sleep", "500"]})
    agent = info["agentProcess"]["pid"]
    # Nobody but the daemon has the listener.
    own = os.readlink(f"/proc/self/fd/{listener.fileno()}")
    assert own in descriptors(daemon.pid).values()
    pids = [agent, info["proxy"]["pid"], client.call("GET", "/v1/health")["forkServer"]["pid"]]
    for pid in pids:
        held = descriptors(pid)
        assert held and own not in held.values(), f"{pid} has the listener: {held}"
    daemon.send_signal(signal.SIGTERM)
    assert notify.recv(4096).splitlines() == [b"STOPPING=1"]
    assert daemon.wait(60) == 0, daemon.stderr.read()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    # The file is the service manager's: a client that comes now starts the next daemon.
    assert stat.S_ISSOCK(os.stat(path).st_mode) and os.stat(path).st_ino == inode
    client.close()

# A client that waits for the end of the daemon waits for it, and not for this process, which has made the socket.
for words in (["stop", "--now"], ["stop", "--detach"]):
    daemon = start([listener], notify, "--socket", path)
    assert notify.recv(4096).splitlines() == [b"READY=1"]
    stopped = subprocess.run([program, *words, "--socket", path], env=ENV, capture_output=True, text=True, timeout=60)
    assert stopped.returncode == 0 and "the daemon has ended" in stopped.stderr, stopped
    assert daemon.wait(60) == 0, daemon.stderr.read()
    assert notify.recv(4096).splitlines() == [b"STOPPING=1"]

# A socket where no client looks is refused, and so are two.
elsewhere = listening(str(directory / "elsewhere.sock"))
for listeners, said in ([elsewhere], "the path of ListenStream="), ([listener, elsewhere], "several sockets"):
    daemon = start(listeners, notify, "--socket", path)
    assert daemon.wait(60) == 2
    assert said in daemon.stderr.read()
print("service: socket activation and notification: passed")
