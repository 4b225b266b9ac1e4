"""The ready-made e-mail over STARTTLS, against a small SMTP server on loopback with certificates made here."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from relevo.effects import Registry, SmtpServer, email
from tests.integration.test_effects import QUICK
from tests.support.authority import Authority
from tests.support.effects import attempts, performing, record, states
from tests.support.relays import Store, sqlite_store
from tests.support.waiting import eventually

MAIL = {"to": "ann@shop.example", "subject": "Your order", "text": "It is on its way."}


@dataclass
class Sink:
    """``plain``, ``secret``: commands that came before and after the handshake. ``offers``: it knows STARTTLS."""

    context: ssl.SSLContext
    offers: bool = True
    port: int = 0
    plain: list[str] = field(default_factory=list)
    secret: list[str] = field(default_factory=list)
    mails: list[bytes] = field(default_factory=list)

    def talk(self, connection: socket.socket) -> None:
        stream = connection.makefile("rwb")
        seen = self.plain

        def say(text: str) -> None:
            stream.write(text.encode() + b"\r\n")
            stream.flush()

        say("220 sink")
        while line := stream.readline():
            verb = line.split()[0].decode().upper()
            seen.append(verb)
            if verb == "EHLO":
                say("250-sink\r\n250 STARTTLS" if self.offers and seen is self.plain else "250 sink")
            elif verb == "STARTTLS":
                say("220 go on")
                connection = self.context.wrap_socket(connection, server_side=True)
                stream, seen = connection.makefile("rwb"), self.secret
            elif verb == "DATA":
                say("354 go on")
                content = b""
                while not content.endswith(b"\r\n.\r\n"):
                    content += stream.readline()
                self.mails.append(content)
                say("250 taken")
            else:
                say("250 ok")


@contextmanager
def serving(context: ssl.SSLContext, *, offers: bool = True) -> Iterator[Sink]:
    sink = Sink(context, offers)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sink.port = listener.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), connection:
                    sink.talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield sink
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=10)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return sqlite_store(tmp_path / "app.db")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "ca")


async def outcome(store: Store, sink: Sink, **server: Any) -> tuple[str, str, int]:
    """State, what was said, and acts begun."""
    options = {"host": "localhost", "port": sink.port} | server
    effect = email("mail", server=SmtpServer(**options), sender="orders@shop.example", retry=QUICK, registry=Registry())
    record(store, effect, "o-1", MAIL)
    async with performing([effect], store):
        await eventually(lambda: states(store)["o-1"] in ("done", "failed"), what="it ended", timeout_s=60)
    ((error,),) = store.query("select error from relevo_effect")
    return states(store)["o-1"], str(error), attempts(store)["o-1"]


async def test_the_mail_travels_behind_the_handshake(store: Store, authority: Authority) -> None:
    """Nothing but the greeting goes in the clear."""
    with serving(authority.server("DNS:localhost")) as sink:
        assert (await outcome(store, sink, ca_file=authority.certificate))[0] == "done"
    assert sink.plain == ["EHLO", "STARTTLS"]
    assert sink.secret[:4] == ["EHLO", "MAIL", "RCPT", "DATA"] and b"on its way" in sink.mails[0]


@pytest.mark.parametrize(
    ("names", "days", "words"),
    [("DNS:other.example", 2, "Hostname mismatch"), ("DNS:localhost", 0, "has expired")],
    ids=["wrong-name", "expired"],
)
async def test_a_certificate_that_is_not_accepted(
    store: Store, authority: Authority, names: str, days: int, words: str
) -> None:
    """*Failed* with the reason; no mail, no sender and no recipient was told."""
    with serving(authority.server(names, days=days)) as sink:
        state, error, begun = await outcome(store, sink, ca_file=authority.certificate)
    assert (state, begun) == ("failed", 1) and "is not accepted" in error and words in error
    assert sink.plain == ["EHLO", "STARTTLS"] and sink.secret == []


async def test_a_server_without_starttls_gets_nothing(store: Store, authority: Authority) -> None:
    """No fallback to plain text: *failed*, and it says what is missing."""
    with serving(authority.server("DNS:localhost"), offers=False) as sink:
        state, error, begun = await outcome(store, sink, ca_file=authority.certificate)
    assert (state, begun) == ("failed", 1) and "STARTTLS" in error
    assert sink.plain[:1] == ["EHLO"] and "MAIL" not in sink.plain
