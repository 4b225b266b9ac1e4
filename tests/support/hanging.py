"""A TCP proxy whose connections a test may make hang: no answer, no end, no reset. As a NAT that forgets, a failover
without a farewell, or a server whose machine stands still.

It runs in threads of its own, so that a test that blocks its loop does not hold it up.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from tests.support.waiting import eventually_sync

NewConnections = Literal["work", "silent", "half", "refused"]
"""``silent``: accepted, and never a byte. ``half``: the first bytes of the server's first answer, and then nothing."""
Direction = Literal["up", "down"]


@dataclass
class Pair:
    """One connection through the proxy. ``hangs``: what arrives is swallowed, in both directions."""

    client: socket.socket
    server: socket.socket | None = None
    hangs: bool = False
    left: int | None = None
    """So many bytes of the server's go through, and then it hangs."""
    late_until: float = 0.0
    """What the server sends arrives no sooner, by ``time.monotonic``."""
    closed: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        self.closed.set()
        for end in (self.client, self.server):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


@dataclass
class HangingProxy:
    """Listens on ``port`` of loopback for ``host:port`` of a URL."""

    target: tuple[str, int]
    new: NewConnections = "work"
    hang_after: bytes | None = None
    """A connection whose client sends this gets no answer any more; what was sent arrives."""
    hang_before: bytes | None = None
    """As ``hang_after``, and what was sent does not arrive either."""
    slow_up_s: float = 0.0
    """So long each 64 kB of a client's take."""
    hung: int = 0
    """Connections that hang, or did."""
    accepted: int = 0
    pairs: list[Pair] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def through(self, url: str) -> str:
        """``url``, by way of this proxy."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user[0]}{user[1]}127.0.0.1:{self.port}"))

    def hang(self) -> int:
        """Every connection there is hangs from now on; how many they are."""
        for pair in (pairs := list(self.pairs)):
            self._hang(pair)
        return len(pairs)

    def hang_in(self, count: int) -> None:
        """Every connection there is hangs after ``count`` more bytes of the server's."""
        for pair in list(self.pairs):
            pair.left = count

    def cut(self) -> None:
        """Every connection that hangs is closed: the peer is found to be gone."""
        for pair in list(self.pairs):
            if pair.hangs:
                pair.close()

    def cut_one(self, chance: random.Random) -> bool:
        """Close one connection that works; whether there was one."""
        pair = self._one(chance)
        if pair is not None:
            pair.close()
        return pair is not None

    def hang_one(self, chance: random.Random) -> bool:
        """One connection hangs from now on."""
        pair = self._one(chance)
        if pair is not None:
            self._hang(pair)
        return pair is not None

    def delay_one(self, chance: random.Random, seconds: float) -> bool:
        """What the server answers on one connection arrives ``seconds`` late."""
        pair = self._one(chance)
        if pair is not None:
            pair.late_until = time.monotonic() + seconds
        return pair is not None

    def _one(self, chance: random.Random) -> Pair | None:
        self.pairs[:] = [pair for pair in self.pairs if not pair.closed.is_set()]
        working = [pair for pair in self.pairs if not pair.hangs]
        return chance.choice(working) if working else None

    def caught(self, count: int = 1, timeout_s: float = 20.0) -> None:
        """Wait until ``count`` connections hang."""
        eventually_sync(lambda: self.hung >= count, what=f"{count} connections that hang", timeout_s=timeout_s)

    def reset(self) -> None:
        """All connections are closed, and new ones work."""
        self.new, self.hung = "work", 0
        for pair in (pairs := list(self.pairs)):
            pair.close()
        del self.pairs[: len(pairs)]

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        for pair in self.pairs:
            pair.close()

    def _hang(self, pair: Pair) -> None:
        if not pair.hangs:
            pair.hangs = True
            self.hung += 1

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.new == "refused":
                client.close()
                continue
            pair = Pair(client, left=3 if self.new == "half" else None)
            self.pairs.append(pair)
            if self.new == "silent":
                self._hang(pair)
                threading.Thread(target=self._pump, args=(pair, "up"), daemon=True).start()
                continue
            try:
                pair.server = socket.create_connection(self.target, timeout=5)
                pair.server.settimeout(None)
            except OSError:
                client.close()
                continue
            for direction in ("up", "down"):
                threading.Thread(target=self._pump, args=(pair, direction), daemon=True).start()

    def _pump(self, pair: Pair, direction: Direction) -> None:
        source, target = (pair.client, pair.server) if direction == "up" else (pair.server, pair.client)
        assert source is not None
        try:
            while data := source.recv(65_536):
                if not pair.hangs and direction == "up":
                    self._look(pair, data)
                if pair.left is not None and direction == "down":
                    data, pair.left = data[: pair.left], max(0, pair.left - len(data))
                    if target is not None and data:
                        target.sendall(data)
                    if pair.left == 0:
                        self._hang(pair)
                    continue
                if direction == "down" and pair.late_until:
                    pair.closed.wait(max(0.0, pair.late_until - time.monotonic()))
                if direction == "up" and self.slow_up_s:
                    pair.closed.wait(self.slow_up_s * len(data) / 65_536)
                if not pair.hangs and target is not None:
                    target.sendall(data)
        except OSError:
            pass
        if not pair.hangs:
            with contextlib.suppress(OSError):
                if target is not None:
                    target.shutdown(socket.SHUT_WR)
        elif direction == "up":
            pair.close()  # the client gave it up

    def _look(self, pair: Pair, data: bytes) -> None:
        lowered = data.lower()
        if self.hang_before is not None and self.hang_before in lowered:
            self._hang(pair)
        elif self.hang_after is not None and self.hang_after in lowered:
            if pair.server is not None:
                pair.server.sendall(data)
            self._hang(pair)


@contextlib.contextmanager
def hanging(url: str, default_port: int = 5432) -> Iterator[HangingProxy]:
    """A proxy before the server of ``url``."""
    parts = urlsplit(url)
    proxy = HangingProxy((parts.hostname or "127.0.0.1", parts.port or default_port))
    try:
        yield proxy
    finally:
        proxy.close()
