"""A proxy in front of PostgreSQL that counts what a client asks: how often it waits for an answer, with what."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_ASKS = {b"Q": "query", b"S": "sync", b"H": "flush"}
"""Frontend messages after which the server answers what it has: outside a pipeline the client waits after each."""
_UNTYPED = (80877103, 80877104)
"""SSLRequest and GSSENCRequest: like the startup message they have no type, and another one follows."""


@dataclass
class Counted:
    """``asked``: one entry per request for an answer. ``texts``: of the statements parsed or sent as they are;
    ``executed``: how many were executed. All since ``reset``."""

    asked: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    executed: int = 0

    def reset(self) -> None:
        self.asked.clear()
        self.texts.clear()
        self.executed = 0


class RoundTrips:
    """One per test; its clients may be threads or event loops, since it runs in threads of its own."""

    def __init__(self, url: str) -> None:
        self._target = (urlsplit(url).hostname or "127.0.0.1", urlsplit(url).port or 5432)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._server]
        self.counted = Counted()
        parts = urlsplit(url)
        user = f"{parts.username}@" if parts.username else ""
        self.url = parts._replace(netloc=f"{user}127.0.0.1:{self._server.getsockname()[1]}").geturl()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [near, far]
            threading.Thread(target=self._up, args=(near, far), daemon=True).start()
            threading.Thread(target=_copy, args=(far, near), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket) -> None:
        buffer, started = b"", False
        try:
            while data := near.recv(65_536):
                buffer += data
                while True:
                    head = 1 if started else 0
                    if len(buffer) < head + 4:
                        break
                    size = head + struct.unpack_from("!I", buffer, head)[0]
                    if len(buffer) < size:
                        break
                    message, buffer = buffer[:size], buffer[size:]
                    if started:
                        self._count(message)
                    else:
                        started = struct.unpack_from("!I", message, 4)[0] not in _UNTYPED
                far.sendall(data)  # after it is counted: an answer is never seen before its question
        except OSError:
            pass
        finally:
            _shut(far)

    def _count(self, message: bytes) -> None:
        kind, counted = message[:1], self.counted
        if kind in _ASKS:
            counted.asked.append(_ASKS[kind])
        if kind == b"Q":
            counted.texts.append(message[5:-1].decode())
        elif kind == b"P":
            counted.texts.append(message[5:].split(b"\0")[1].decode())
        counted.executed += kind in (b"Q", b"E")


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        _shut(target)


def _shut(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


@contextmanager
def round_trips(url: str) -> Iterator[RoundTrips]:
    proxy = RoundTrips(url)
    try:
        yield proxy
    finally:
        proxy.close()
