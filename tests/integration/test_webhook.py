"""The ready-made webhook against a real HTTP server on loopback."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from relevo.effects import NotDone, Registry, verify_signature, webhook
from relevo.effects.addresses import is_public, resolve
from relevo.effects.verdicts import EffectRefused
from relevo.errors import ConfigError
from tests.integration.test_effects import QUICK
from tests.support.effects import attempts, performing, record, states
from tests.support.relays import Store, sqlite_store
from tests.support.waiting import eventually

SECRET = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0"  # base64 of a text


@dataclass
class Receiver:
    """Answers from ``answers``, then 200. ``got``: headers and body of each request."""

    url: str = ""
    answers: list[tuple[int, dict[str, str]] | None] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes, str]] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.got.append(({k.lower(): v for k, v in self.headers.items()}, body, self.path))
            answer = found.answers.pop(0) if found.answers else (200, {})
            if answer is None:  # the line breaks after the request was read
                self.close_connection = True
                return
            self.send_response(answer[0])
            for name, value in answer[1].items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}/hooks?a=1"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return sqlite_store(tmp_path / "app.db")


def hook(url: str, **more: Any) -> Any:
    options: dict[str, Any] = {"secret": SECRET, "allow_private": True, "retry": QUICK, "registry": Registry()} | more
    return webhook("order-placed", url=url, **options)


async def until(store: Store, effect: Any, state: str) -> None:
    record(store, effect, "o-1", {"cents": 42})
    async with performing([effect], store):
        await eventually(lambda: states(store) == {"o-1": state}, what=state)


async def test_it_is_signed_and_carries_its_key(store: Store, receiver: Receiver, caplog: Any) -> None:
    """The receiver can prove where it comes from, and recognise a repetition; the secret is nowhere else."""
    caplog.set_level(logging.DEBUG)
    effect = hook(receiver.url, headers={"X-Shop": "1"})
    await until(store, effect, "done")
    ((headers, body, path),) = receiver.got
    assert json.loads(body) == {
        "id": headers["idempotency-key"],
        "type": "order-placed",
        "key": "o-1",
        "data": {"cents": 42},
    }
    assert headers["webhook-id"] == headers["idempotency-key"] and path == "/hooks?a=1" and headers["x-shop"] == "1"
    assert verify_signature(SECRET, headers, body)
    assert verify_signature(["old", SECRET], headers, body)
    now = int(headers["webhook-timestamp"])
    assert not verify_signature(SECRET, headers, body + b" ")
    assert not verify_signature("another", headers, body)
    assert not verify_signature(SECRET, headers, body, now=now + 301)
    assert not verify_signature(SECRET, headers | {"webhook-timestamp": str(now + 1)}, body)
    assert not verify_signature(SECRET, {}, body)
    shown = repr(effect) + repr(effect.function) + caplog.text + str(store.query("select * from relevo_effect"))
    assert "whsec" not in shown and "secret of the test" not in shown


ANSWERS: dict[str, tuple[list[Any], str, int, bool]] = {
    "4xx fails": ([(404, {})], "failed", 1, False),
    "a redirect is not followed": ([(302, {"location": "http://127.0.0.1:1/"})], "failed", 1, False),
    "409 at first fails": ([(409, {})], "failed", 1, False),
    "busy, later": ([(429, {"retry-after": "0"}), (425, {})], "done", 3, False),
    "5xx is unknown": ([(503, {})], "unknown", 1, False),
    "a broken line is unknown": ([None], "unknown", 1, False),
    "5xx goes again with its key": ([(500, {}), None], "done", 3, True),
    "409 after a lost answer is done": ([None, (409, {})], "done", 2, True),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_each_answer_has_its_meaning(store: Store, receiver: Receiver, case: str) -> None:
    """What the receiver answers, and what becomes of the effect after how many requests."""
    answers, state, count, idempotent = ANSWERS[case]
    receiver.answers = list(answers)
    await until(store, hook(receiver.url, idempotent=idempotent), state)
    assert len(receiver.got) == count == attempts(store)["o-1"]
    assert len({headers["idempotency-key"] for headers, _, _ in receiver.got}) == 1


async def test_private_addresses_are_refused_before_a_connection(store: Store, receiver: Receiver) -> None:
    """Also by a name that resolves to one."""
    await until(store, hook(receiver.url.replace("127.0.0.1", "localhost"), allow_private=False), "failed")
    assert receiver.got == [] and "allow_private" in store.query("select error from relevo_effect")[0][0]


async def test_the_name_is_resolved_once(store: Store, receiver: Receiver, monkeypatch: Any) -> None:
    """A name that would answer differently the second time gains nothing: the checked address is connected to."""
    import socket

    asked: list[str] = []
    real: Callable[..., Any] = socket.getaddrinfo
    port = int(receiver.url.split(":")[2].split("/")[0])

    def rebinding(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "hooks.example":
            asked.append(host)
            return real("127.0.0.1" if len(asked) == 1 else "192.0.2.1", port, *rest[1:], **more)
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    await until(store, hook(f"http://hooks.example:{port}/"), "done")
    assert asked == ["hooks.example"] and receiver.got[0][0]["host"] == f"hooks.example:{port}"


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("168.63.129.16", "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "fd00:ec2::254", "ff02::1", "::"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::1"),
    ],
)
def test_addresses_inside(address: str) -> None:
    """Private, loopback, link-local, metadata, shared, reserved, and those wrapped in IPv6."""
    assert not is_public(ip_address(address))
    with pytest.raises(EffectRefused):
        resolve(address, 80, allow_private=False)


def test_addresses_outside() -> None:
    """Ordinary ones; and a name that does not exist is tried again later."""
    assert is_public(ip_address("93.184.216.34")) and is_public(ip_address("2606:2800:220:1::1"))
    with pytest.raises(NotDone):
        resolve("no-such-host.invalid", 80, allow_private=False)


def test_a_wrong_declaration_is_refused() -> None:
    """A URL without host or with a password, a header of ours, an empty secret."""
    for url in ("ftp://a.example/", "https:///x", "https://u:secret@a.example/", "https://a.example:x/"):
        with pytest.raises(ConfigError) as caught:
            hook(url)
        assert "secret@" not in str(caught.value)
    with pytest.raises(ConfigError, match="set by Relevo"):
        hook("https://a.example/", headers={"Idempotency-Key": "1"})
    with pytest.raises(ConfigError, match="empty"):
        hook("https://a.example/", secret="")


async def test_nobody_there_is_not_done(store: Store, receiver: Receiver) -> None:
    """No connection: nothing was sent, so it is tried again, and fails after the attempts."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        await until(store, hook(f"http://127.0.0.1:{port}/"), "failed")
    assert attempts(store) == {"o-1": 3}
