"""The ready-made e-mail against a real SMTP server on loopback, which says what the test wants."""

from __future__ import annotations

import asyncio
import contextlib
import email as email_package
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from relevo.effects import Registry, SmtpServer, email
from relevo.errors import ConfigError
from relevo.storage.effecting import idempotency_key
from tests.integration.test_effects import QUICK
from tests.support.effects import attempts, performing, record, states
from tests.support.relays import Store, sqlite_store
from tests.support.waiting import eventually

MAIL = {"to": ["ann@shop.example", "bob@shop.example"], "subject": "Your order", "text": "Grüße.\n.\nA dot above."}


@dataclass
class Sink:
    """``says``: what it answers to a command instead of 250; ``hang_up``: it closes after the content."""

    port: int = 0
    says: dict[str, list[str]] = field(default_factory=dict)
    hang_up: bool = False
    mails: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 sink\r\n")
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                verb = line.split()[0].decode().upper() if line.split() else ""
                answer = self.says[verb].pop(0) if self.says.get(verb) else None
                if verb == "DATA" and answer is None:
                    writer.write(b"354 go on\r\n")
                    content = await reader.readuntil(b"\r\n.\r\n")
                    if self.hang_up:
                        break
                    self.mails.append(content)
                writer.write(f"{answer or '250 ok'}\r\n".encode())
                await writer.drain()
                if verb == "QUIT":
                    break
        writer.close()


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    found = Sink()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return sqlite_store(tmp_path / "app.db")


def mail(sink: Sink, **more: Any) -> Any:
    server = SmtpServer("127.0.0.1", sink.port, security="none")
    return email(
        "receipt", server=server, sender="Shop <orders@shop.example>", retry=QUICK, registry=Registry(), **more
    )


async def until(store: Store, effect: Any, state: str, data: Any = MAIL) -> None:
    record(store, effect, "o-1", data)
    async with performing([effect], store):
        await eventually(lambda: states(store) == {"o-1": state}, what=state)


async def test_it_arrives_as_written_with_an_id_of_the_effect(store: Store, sink: Sink) -> None:
    """Text, umlauts, a lone dot; the Message-ID is the effect's."""
    await until(store, mail(sink), "done")
    (content,) = sink.mails
    assert b"\n" not in content.replace(b"\r\n", b"") and content.isascii()
    got = email_package.message_from_bytes(content.replace(b"\r\n..", b"\r\n.").removesuffix(b".\r\n"))
    assert got["Message-ID"] == f"<{idempotency_key('receipt', 'o-1')}@shop.example>"
    assert got["To"] == "ann@shop.example, bob@shop.example" and got["From"] == "Shop <orders@shop.example>"
    text: Any = got.get_payload(decode=True)
    assert text.decode().splitlines() == str(MAIL["text"]).splitlines()


CASES: dict[str, tuple[dict[str, list[str]], bool, str, int, int]] = {
    "a recipient is refused": ({"RCPT": ["250 ok", "550 no such user"]}, False, "failed", 1, 0),
    "greylisted, then taken": ({"RCPT": ["451 later"]}, False, "done", 2, 1),
    "the sender is refused": ({"MAIL": ["530 who are you"]}, False, "failed", 1, 0),
    "DATA is refused": ({"DATA": ["554 no"]}, False, "failed", 1, 0),
    "the line breaks after the content": ({}, True, "unknown", 1, 0),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_the_server_says(store: Store, sink: Sink, case: str) -> None:
    """Refused before the content: failed or later, nobody got it. Lost after it: unknown, and not sent again."""
    sink.says, sink.hang_up, state, count, arrived = CASES[case]
    await until(store, mail(sink), state)
    assert attempts(store) == {"o-1": count} and len(sink.mails) == arrived


async def test_a_mail_that_cannot_be_made_fails(store: Store, sink: Sink) -> None:
    """Missing data, and a header with a line break in it."""
    await until(store, mail(sink), "failed", {"to": "ann@shop.example"})
    record(store, "receipt", "o-2", MAIL | {"subject": "a\nBcc: eve@evil.example"})
    async with performing([mail(sink)], store):
        await eventually(lambda: states(store)["o-2"] == "failed", what="failed")
    assert sink.mails == []


def test_a_password_does_not_travel_in_the_clear() -> None:
    """Refused at the declaration; it is not in the ``repr`` either."""
    with pytest.raises(ConfigError, match="in the clear"):
        SmtpServer("mail.shop.example", user="u", password="s3cret", security="none")
    assert "s3cret" not in repr(SmtpServer("mail.shop.example", user="u", password="s3cret"))
