"""The webhook over TLS, against a real server on loopback with certificates made here."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from relevo.effects import Registry, webhook
from relevo.effects import addresses as addresses_module
from tests.integration.test_effects import QUICK
from tests.support.authority import Authority
from tests.support.effects import attempts, performing, record, states
from tests.support.relays import Store, sqlite_store
from tests.support.waiting import eventually


@dataclass
class Receiver:
    """``got``: paths of the requests that were read; ``hellos``: names that clients asked for in the handshake."""

    port: int = 0
    location: str | None = None
    got: list[str] = field(default_factory=list)
    hellos: list[str | None] = field(default_factory=list)


@contextmanager
def serving(context: ssl.SSLContext) -> Iterator[Receiver]:
    found = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            found.got.append(self.path)
            self.send_response(307 if found.location else 200)
            if found.location:
                self.send_header("location", found.location)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None: ...

    context.sni_callback = lambda socket, name, _: found.hellos.append(name)
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found.port = server.server_address[1]
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return sqlite_store(tmp_path / "app.db")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "ca")


async def outcome(store: Store, url: str, **more: Any) -> tuple[str, str, int]:
    """State, what was said, and acts begun, of one effect."""
    options: dict[str, Any] = {"allow_private": True, "retry": QUICK, "registry": Registry()} | more
    hook = webhook("order-placed", url=url, secret="a secret of the test", **options)
    record(store, hook, "o-1", {"cents": 42})
    async with performing([hook], store):
        await eventually(lambda: states(store)["o-1"] in ("done", "failed"), what="it ended", timeout_s=60)
    ((error,),) = store.query("select error from relevo_effect")
    return states(store)["o-1"], str(error), attempts(store)["o-1"]


async def test_a_certificate_of_a_trusted_authority(store: Store, authority: Authority) -> None:
    """The name in the URL is what the certificate is checked for, and what is asked for in the handshake."""
    with serving(authority.server("DNS:localhost")) as receiver:
        url = f"https://localhost:{receiver.port}/hooks"
        assert (await outcome(store, url, ca_file=authority.certificate))[0] == "done"
    assert receiver.got == ["/hooks"] and receiver.hellos == ["localhost"]


async def test_the_environment_names_the_authorities_too(
    store: Store, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``ca_file`` the system's are trusted, which ``SSL_CERT_FILE`` can name."""
    monkeypatch.setenv("SSL_CERT_FILE", authority.certificate)
    with serving(authority.server("DNS:localhost")) as receiver:
        assert (await outcome(store, f"https://localhost:{receiver.port}/"))[0] == "done"


@pytest.mark.parametrize(
    ("names", "days", "trusted", "words"),
    [
        ("DNS:other.example", 2, True, "Hostname mismatch"),
        ("DNS:localhost", 0, True, "has expired"),
        ("DNS:localhost", 2, False, "unable to get local issuer"),
    ],
    ids=["wrong-name", "expired", "unknown-authority"],
)
async def test_what_is_wrong_with_a_certificate_is_told_and_nothing_is_sent(
    store: Store, authority: Authority, names: str, days: int, trusted: bool, words: str
) -> None:
    """*Failed* at the first attempt, with the reason in plain words; the request is never sent another way."""
    with serving(authority.server(names, days=days)) as receiver:
        more = {"ca_file": authority.certificate} if trusted else {}
        state, error, begun = await outcome(store, f"https://localhost:{receiver.port}/hooks", **more)
    assert (state, begun, receiver.got) == ("failed", 1, [])
    assert f"the certificate of localhost:{receiver.port} is not accepted" in error and words in error


async def test_plain_http_is_no_way_out(store: Store, authority: Authority) -> None:
    """A server that redirects to http: the redirect is not followed. One that speaks no TLS gets nothing."""
    with serving(authority.server("DNS:localhost")) as receiver:
        receiver.location = f"http://localhost:{receiver.port}/plain"
        state, error, _ = await outcome(store, f"https://localhost:{receiver.port}/", ca_file=authority.certificate)
    assert state == "failed" and "redirects are not followed" in error and receiver.got == ["/"]


async def test_private_addresses_are_refused_by_what_the_name_resolves_to(
    store: Store, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public name whose address is ours: refused before a connection is made, though TLS would be in order."""
    with serving(authority.server("DNS:hooks.example")) as receiver:
        real = addresses_module.socket.getaddrinfo

        def resolve(host: str, port: int, **more: Any) -> Any:
            return real("127.0.0.1" if host == "hooks.example" else host, port, **more)

        monkeypatch.setattr(addresses_module.socket, "getaddrinfo", resolve)
        url = f"https://hooks.example:{receiver.port}/"
        state, error, begun = await outcome(store, url, ca_file=authority.certificate, allow_private=False)
        assert (state, begun) == ("failed", 1) and "not an address of the public Internet" in error
        assert receiver.hellos == []


async def test_a_missing_authority_file_is_told_at_the_declaration(tmp_path: Path) -> None:
    from relevo.errors import ConfigError

    with pytest.raises(ConfigError, match=r"ca_file .*nowhere\.pem"):
        webhook("x", url="https://a.example/", secret="s" * 32, ca_file=str(tmp_path / "nowhere.pem"))
