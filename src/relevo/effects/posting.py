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
from relevo.effects.deadline import Deadline
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
    """POST ``body``, within ``timeout_s`` from the look-up of the name to the end of the answer. Raises ``NotDone``
    while nothing was sent, ``EffectRefused`` for an address that may not be reached and a certificate that is not
    accepted, and any error of ``http.client`` once something was sent, or ``TimeoutError``: then the outcome is
    unknown."""
    with Deadline(timeout_s) as deadline:
        try:
            return _post(url, headers, body, deadline, allow_private=allow_private, ca_file=ca_file)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if deadline.over:
                raise TimeoutError(f"no whole answer within {timeout_s:g} s") from error
            raise


def _post(
    url: SplitResult,
    headers: Mapping[str, str],
    body: bytes,
    deadline: Deadline,
    *,
    allow_private: bool,
    ca_file: str | None,
) -> Answer:
    host = url.hostname or ""
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        addresses = deadline.call(lambda: resolve(host, port, allow_private=allow_private))
    except TimeoutError:
        raise NotDone(f"the name {host} was not resolved in time") from None
    connection = _Pinned(host, port, addresses, url.scheme, deadline, ca_file)
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
        deadline.left_s()  # http.client takes headers that are cut off for whole
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
        self, host: str, port: int, addresses: Sequence[str], scheme: str, deadline: Deadline, ca_file: str | None
    ) -> None:
        super().__init__(host, port)
        self._deadline = deadline
        self._addresses = addresses
        self._tls = trusting(ca_file) if scheme == "https" else None
        self.default_port = 443 if self._tls else 80  # decides whether Host names the port

    def connect(self) -> None:
        failure: OSError | None = None
        for address in self._addresses:
            try:
                plain = self._deadline.connect(address, self.port)
            except OSError as error:
                failure = error
                continue
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock = self._tls.wrap_socket(plain, server_hostname=self.host) if self._tls else plain
            self.sock.settimeout(self._deadline.left_s())
            return
        raise failure or EffectRefused("the name has no address")
