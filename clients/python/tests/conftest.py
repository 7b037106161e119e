"""A daemon of its own for the tests, with the fake agent as `my-agent`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = os.environ["AGENT_PROXY"]


class Daemon:
    """An agent-proxy server on loopback, with folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("run", "work", "bin"):
            (folder / name).mkdir(mode=0o700)
        agent = folder / "bin/my-agent"
        agent.write_text(f'#!/bin/sh\nexec "{PROGRAM}" fake-agent "$@"\n')
        agent.chmod(0o755)
        self.socket = str(folder / "run/daemon.sock")
        self.cwd = str(folder / "work")
        self._env = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "AGENT_PROXY_SOCKET": self.socket,
            "AGENT_PROXY_CONFIG_DIR": str(folder / "config"),
        }
        self.port = 0
        self.start()
        self.token = (folder / "config/token").read_text().strip()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """Environment of an example."""
        return {**self._env, "AGENT_PROXY_URL": self.url, "AGENT_PROXY_TOKEN": self.token}

    def _run(self, *args: str) -> str:
        command = [PROGRAM, *args]
        return subprocess.run(command, env=self._env, check=True, capture_output=True, text=True, timeout=60).stdout

    def start(self) -> None:
        state = str(self.folder / "state")
        out = self._run("serve", "--detach", "--json", "--listen", f"127.0.0.1:{self.port}", "--state-dir", state)
        said = json.loads(out)
        self.pid = int(said["pid"])
        self.port = int(said["addresses"][0].rpartition(":")[2])

    def stop(self) -> None:
        self._run("stop", "--now")


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="agent-proxy-client-") as folder:
        daemon = Daemon(Path(folder))
        try:
            yield daemon
        finally:
            daemon.stop()
