"""Receivers of webhooks and mails that answer slowly, endlessly or never: the act ends when its time is over, and the
other effects of the process go on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from relevo.effects import (
    Effect,
    EffectRefused,
    EffectRequest,
    EffectRunner,
    NotDone,
    Registry,
    SmtpServer,
    email,
    webhook,
)
from relevo.effects.deadline import Deadline
from relevo.effects.posting import Answer, parse, post
from relevo.policy import Backoff
from tests.support.authority import Authority
from tests.support.effects import performing, record, states
from tests.support.relays import Store, sqlite_store
from tests.support.waiting import eventually

ACT_S = 1.0
"""The time-out of an act here."""
ENDS_S = 20.0
"""By then it has ended even on a busy machine; without a bound it never does."""
STEP_S = 0.1
"""Between two bytes: far below the time-out."""

Serve = Callable[[socket.socket, threading.Event], None]


class Server:
    """Serves each connection with ``serve`` in a thread of its own, until it is closed."""

    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None) -> None:
        self._serve, self._tls = serve, tls
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.taken = threading.Semaphore(0)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.taken.release()
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self._serve(connection, self._stop)

    def close(self) -> None:
        self._stop.set()
        self._listener.close()


@contextlib.contextmanager
def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(serve, tls)
    try:
        yield server
    finally:
        server.close()


def drip(connection: socket.socket, stop: threading.Event, first: bytes, then: bytes = b"x") -> None:
    connection.sendall(first)
    while not stop.wait(STEP_S):
        connection.sendall(then)


def flood(connection: socket.socket, stop: threading.Event, first: bytes, then: bytes) -> None:
    connection.sendall(first)
    while not stop.is_set():
        connection.sendall(then)


def asked(serve: Serve) -> Serve:
    """Read the request first, then ``serve``."""

    def answer(connection: socket.socket, stop: threading.Event) -> None:
        connection.recv(65536)
        serve(connection, stop)

    return answer


def silent(connection: socket.socket, stop: threading.Event) -> None:
    stop.wait()


def http(how: Callable[..., None], *what: bytes) -> Serve:
    return asked(lambda connection, stop: how(connection, stop, *what))


OK = b"HTTP/1.1 200 OK\r\n"
WEBHOOKS: dict[str, tuple[Serve, Any]] = {
    "never answers": (asked(silent), TimeoutError),
    "never reads": (silent, TimeoutError),
    "drips the status line": (http(drip, b"HTTP/1.1 "), TimeoutError),
    "drips a header": (http(drip, OK + b"X: "), TimeoutError),
    "drips headers": (http(drip, OK, b"X: y\r\n"), TimeoutError),
    "says 100 Continue now and then": (http(drip, b"", b"HTTP/1.1 100 Continue\r\n\r\n"), TimeoutError),
    "says 100 Continue without an end": (http(flood, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500), TimeoutError),
    "sends headers without an end": (http(flood, OK, b"X: y\r\n" * 1000), Exception),
    "sends a header without an end": (http(flood, OK + b"X: ", b"x" * 8192), Exception),
    "drips the body": (http(drip, OK + b"Content-Length: 100000\r\n\r\n"), 200),
    "drips the body in chunks": (http(drip, OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"), 200),
    "drips the size of a chunk": (http(drip, OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0"), 200),
    "sends a body without an end": (http(flood, OK + b"\r\n", b"x" * 8192), 200),
    "redirects for ever": (http(drip, b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 9999\r\n\r\n"), 302),
}


def send(url: str, body: bytes = b"{}", **options: Any) -> Answer:
    return post(parse(url), {}, body, timeout_s=ACT_S, allow_private=True, **options)


async def ended(act: Callable[[], Any]) -> Any:
    """What ``act`` returned or raised, in time."""

    def run() -> Any:
        try:
            return act()
        except Exception as error:
            return error

    async with asyncio.timeout(ENDS_S):
        return await asyncio.to_thread(run)


@pytest.mark.parametrize("security", ["http", "https"])
@pytest.mark.parametrize("way", WEBHOOKS)
async def test_a_webhook_ends_in_its_time(way: str, security: str, tmp_path: Path) -> None:
    """Over the bare connection and over TLS, which http.client and ssl read each in their own way."""
    serve, expected = WEBHOOKS[way]
    authority = Authority.make(tmp_path / "ca") if security == "https" else None
    tls = None if authority is None else authority.server("DNS:localhost")
    with serving(serve, tls) as server:
        body = b"x" * 50_000_000 if way == "never reads" else b"{}"
        ca_file = None if authority is None else authority.certificate
        outcome = await ended(lambda: send(f"{security}://localhost:{server.port}/", body, ca_file=ca_file))
    if isinstance(expected, int):
        assert isinstance(outcome, Answer) and outcome.status == expected
    else:
        assert isinstance(outcome, expected) and not isinstance(outcome, NotDone | EffectRefused), outcome


@pytest.mark.parametrize("way", ["never answers", "drips"])
async def test_a_handshake_that_does_not_end_is_not_done(way: str, tmp_path: Path) -> None:
    """Nothing was sent yet, so the effect is tried again without a doubt."""
    record_of_a_handshake = b"\x16\x03\x03\x40\x00"
    serve = silent if way == "never answers" else http(drip, record_of_a_handshake, b"\x02")
    with serving(serve) as server:
        outcome = await ended(lambda: send(f"https://127.0.0.1:{server.port}/"))
    assert isinstance(outcome, NotDone), outcome


async def test_a_name_that_is_not_resolved_in_time_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    monkeypatch.setattr("relevo.effects.posting.resolve", lambda *_, **__: stop.wait(ENDS_S * 3))
    outcome = await ended(lambda: send("https://shop.example/"))
    stop.set()
    assert isinstance(outcome, NotDone) and "not resolved in time" in str(outcome)


async def test_a_deadline_that_is_over_connects_to_nothing() -> None:
    with serving(silent) as server, Deadline(0.01) as deadline:
        await eventually(lambda: deadline.over, what="it is over")
        with pytest.raises(TimeoutError):
            deadline.connect("127.0.0.1", server.port)


def smtp(*answers: bytes, then: Serve) -> Serve:
    """A server that greets, gives these answers to the first commands, and then goes on as ``then``."""

    def serve(connection: socket.socket, stop: threading.Event) -> None:
        lines = connection.makefile("rb")
        connection.sendall(b"220 here\r\n")
        for answer in answers:
            lines.readline()
            connection.sendall(answer)
            if answer.startswith(b"354"):
                while lines.readline() != b".\r\n":
                    pass
                return then(connection, stop)
        lines.readline()
        return then(connection, stop)

    return serve


FINE = b"250 fine\r\n"
LINES = b"250-more\r\n" * 1000
SMTP: dict[str, tuple[Serve, type[BaseException]]] = {
    "does not greet": (silent, NotDone),
    "drips the greeting": (lambda c, s: drip(c, s, b"220 "), NotDone),
    "greets without an end": (lambda c, s: flood(c, s, b"", LINES), NotDone),
    "drips the lines of EHLO": (smtp(then=lambda c, s: drip(c, s, b"", b"250-more\r\n")), NotDone),
    "answers EHLO without an end": (smtp(then=lambda c, s: flood(c, s, b"", LINES)), NotDone),
    "drips at RCPT": (smtp(FINE, FINE, then=lambda c, s: drip(c, s, b"250 ")), NotDone),
    "is silent after the content": (smtp(FINE, FINE, FINE, b"354 go\r\n", then=silent), TimeoutError),
    "drips after the content": (
        smtp(FINE, FINE, FINE, b"354 go\r\n", then=lambda c, s: drip(c, s, b"250 ")),
        TimeoutError,
    ),
}


@pytest.mark.parametrize("way", SMTP)
async def test_a_mail_ends_in_its_time(way: str) -> None:
    serve, expected = SMTP[way]
    with serving(serve) as server:
        hello = email(
            "hello",
            server=SmtpServer("127.0.0.1", server.port, security="none"),
            sender="shop@shop.example",
            timeout_s=ACT_S,
            registry=Registry(),
        )
        request = _request({"to": "ann@shop.example", "subject": "Hello", "text": "Hello."})
        outcome = await ended(lambda: hello(request))
    assert type(outcome) is expected, outcome


def _request(data: Any) -> Any:
    return EffectRequest(name="hello", key="1", data=data, idempotency_key=uuid4(), attempt=1)


def under_way(runner: EffectRunner) -> dict[str, int]:
    return dict(runner.health().detail["performing"]["under_way_by_effect"])


@pytest.fixture
def shop(tmp_path: Path) -> Store:
    return sqlite_store(tmp_path / "app.db")


@pytest.mark.parametrize("way", ["drips a header", "says 100 Continue without an end", "an act that never returns"])
async def test_what_is_slow_takes_no_slots_of_other_effects(shop: Store, way: str) -> None:
    """More slow acts than there are slots; a charge that is recorded behind them is performed at once."""
    charged, release = list[str](), threading.Event()
    charge = Effect("charge", lambda request: charged.append(request.key), None, 3.0, Backoff(), False)
    serve = WEBHOOKS.get(way, (silent, None))[0]
    with serving(serve) as server:
        if way in WEBHOOKS:
            url = f"http://127.0.0.1:{server.port}/"
            slow = webhook("slow", url=url, secret="s", timeout_s=60.0, allow_private=True, registry=Registry())
        else:
            slow = Effect("slow", lambda _: release.wait(60), None, 60.0, Backoff(), False)
        try:
            async with performing([slow, charge], shop, at_once=2) as runner:
                for number in range(4):
                    record(shop, slow, number)
                await eventually(lambda: under_way(runner) == {"slow": 2}, what="its slots are taken")
                began = time.monotonic()
                record(shop, charge, "card-1")
                await eventually(lambda: charged == ["card-1"], what="the card is charged")
                assert time.monotonic() - began < 50, "long before a slow act ends"
                server.close()
                release.set()
        finally:
            release.set()
    assert states(shop)["card-1"] == "done"
