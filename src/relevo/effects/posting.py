"""One POST to one resolved address: no redirects, no proxies, no second look at the name."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from relevo.effects.addresses import resolve
from relevo.effects.trust import refused, trusting
from relevo.effects.verdicts import EffectRefused, NotDone
from relevo.errors import ConfigError

ANSWER_BYTES_MAX: Final = 2_000
"""How much of an answer is read; it is kept for people."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``date``: what the receiver's clock showed, as it wrote it."""

    status: int
    retry_after: str | None
    text: str
    date: str | None = None


def parse(url: str) -> SplitResult:
    """Raises ``ConfigError`` for what is no usable http(s) URL; it never repeats a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigError("the URL of a webhook cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("the URL of a webhook begins with https:// (or http://) and names a host")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the URL of a webhook carries no user and password: use headers=")
    return parts


def post(
    url: SplitResult,
    headers: Mapping[str, str],
    body: bytes,
    *,
    timeout_s: float,
    allow_private: bool,
    ca_file: str | None = None,
) -> Answer:
    """POST ``body``. Raises ``NotDone`` while nothing was sent, ``EffectRefused`` for an address that may not be
    reached and a certificate that is not accepted, and whatever ``http.client`` raises once something was sent: then
    the outcome is unknown."""
    host = url.hostname or ""
    port = url.port or (443 if url.scheme == "https" else 80)
    connection = _Pinned(host, port, resolve(host, port, allow_private=allow_private), url.scheme, timeout_s, ca_file)
    try:
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise refused(f"{host}:{port}", error) from None
        except (OSError, ssl.SSLError) as error:
            raise NotDone(f"no connection to {host}:{port} ({type(error).__name__}: {error})") from None
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("POST", target, body=body, headers=dict(headers))
        response = connection.getresponse()
        text = b""
        with contextlib.suppress(OSError, http.client.HTTPException):  # the status has decided
            text = response.read(ANSWER_BYTES_MAX)
        header = response.getheader
        return Answer(response.status, header("retry-after"), text.decode("utf-8", "replace"), header("date"))
    finally:
        connection.close()


class _Pinned(http.client.HTTPConnection):
    """Connects to the addresses that were checked; the name is used for ``Host``, SNI and the certificate only."""

    def __init__(
        self, host: str, port: int, addresses: Sequence[str], scheme: str, timeout_s: float, ca_file: str | None
    ) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._addresses = addresses
        self._tls = trusting(ca_file) if scheme == "https" else None
        self.default_port = 443 if self._tls else 80  # decides whether Host names the port

    def connect(self) -> None:
        failure: OSError | None = None
        for address in self._addresses:
            try:
                plain = socket.create_connection((address, self.port), self.timeout)
            except OSError as error:
                failure = error
                continue
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock = self._tls.wrap_socket(plain, server_hostname=self.host) if self._tls else plain
            return
        raise failure or EffectRefused("the name has no address")
