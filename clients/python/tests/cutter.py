"""A proxy that cuts connections off."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self


class Cutter:
    """Passes each connection on to a port, and cuts it off after `cut` bytes of the answer; the next gets some more."""

    def __init__(self, port: int, cut: int) -> None:
        self._target, self._cut = port, cut
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._pass_on, args=(client, self._cut + self.connections), daemon=True).start()

    def _pass_on(self, client: socket.socket, left: int) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            server.sendall(client.recv(65536))
            while left > 0 and (data := server.recv(min(left, 65536))):
                client.sendall(data)
                left -= len(data)
