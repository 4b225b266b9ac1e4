"""A TCP proxy whose connections a test cuts, silences, delays or makes half-open while they are in use."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["flow", "silent", "late"]
"""``flow``: bytes pass. ``silent``: bytes are swallowed in both directions and the connection stays open. ``late``:
replies of the server wait until a moment."""


@dataclass(eq=False)
class _Pair:
    client: socket.socket
    server: socket.socket
    mode: Mode = "flow"
    late_until: float = 0.0
    closed: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        self.closed.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class FaultyProxy:
    """Listens on ``port`` of the loopback interface and forwards to ``target``. Thread-safe."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[_Pair] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in self._open():
            pair.close()

    def cut(self, chance: random.Random) -> bool:
        """Close one connection; whether there was one."""
        pair = self._pick(chance)
        if pair is not None:
            pair.close()
        return pair is not None

    def silence(self, chance: random.Random) -> bool:
        """From now on one connection carries nothing, and neither side learns of it."""
        pair = self._pick(chance)
        if pair is not None:
            pair.mode = "silent"
        return pair is not None

    def delay(self, chance: random.Random, seconds: float) -> bool:
        """What the server answers on one connection arrives ``seconds`` late."""
        pair = self._pick(chance)
        if pair is not None:
            pair.late_until = time.monotonic() + seconds
            pair.mode = "late"
        return pair is not None

    def _open(self) -> list[_Pair]:
        with self._lock:
            self._pairs = [pair for pair in self._pairs if not pair.closed.is_set()]
            return list(self._pairs)

    def _pick(self, chance: random.Random) -> _Pair | None:
        flowing = [pair for pair in self._open() if pair.mode == "flow"]
        return chance.choice(flowing) if flowing else None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            pair = _Pair(client, server)
            with self._lock:
                self._pairs.append(pair)
            threading.Thread(target=self._pump, args=(pair, client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(pair, server, client, True), daemon=True).start()

    def _pump(self, pair: _Pair, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        try:
            while data := source.recv(65_536):
                if pair.mode == "silent":
                    continue
                if replies and pair.mode == "late":
                    pair.closed.wait(max(0.0, pair.late_until - time.monotonic()))
                    pair.mode = "flow"
                sink.sendall(data)
        except OSError:
            pass
        if pair.mode == "silent" and not replies:
            pair.closed.wait(60)  # half-open: the client left, and the server does not learn of it for a minute
        elif pair.mode == "silent":
            pair.closed.wait()  # the server left, and the client does not learn of it
        pair.close()
