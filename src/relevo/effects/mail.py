"""A ready-made effect: a mail over SMTP. SMTP knows no idempotency key, so there is at most one automatic try whose
outcome may be lost; the ``Message-ID`` is the effect's, by which a mail server's log can tell."""

from __future__ import annotations

import contextlib
import smtplib
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, getaddresses, parseaddr
from typing import Any, Final, Literal

from relevo.effects.deadline import Deadline
from relevo.effects.declaring import EFFECTS, Effect, EffectRequest, Registry, Verify
from relevo.effects.trust import refused, trusting
from relevo.effects.verdicts import EffectRefused, NotDone
from relevo.errors import ConfigError
from relevo.policy import Backoff
from relevo.runtime.texts import clean

_WIRE: Final = SMTP.clone(cte_type="7bit")
"""CRLF, and nothing that a server without 8BITMIME could not take."""

ANSWER_BYTES_MAX: Final = 100_000
"""Of one answer of a server."""
Render = Callable[[EffectRequest], EmailMessage]


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """``security``: ``starttls`` (port 587), ``tls`` (465), or ``none`` for a relay on this machine.
    The certificate is checked by the system's authorities, or by those of ``ca_file`` (PEM) alone."""

    host: str
    port: int = 587
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    security: Literal["starttls", "tls", "none"] = "starttls"
    ca_file: str | None = None

    def __post_init__(self) -> None:
        if self.security not in ("starttls", "tls", "none"):
            raise ConfigError(f"SmtpServer: security is 'starttls', 'tls' or 'none', not {self.security!r}")
        if self.ca_file is not None:
            trusting(self.ca_file)  # what cannot be read is told now
        if self.password is not None and self.security == "none" and self.host not in ("localhost", "127.0.0.1", "::1"):
            raise ConfigError("SmtpServer: a password would travel in the clear; use security='starttls' or 'tls'")


def email(
    name: str,
    *,
    server: SmtpServer,
    sender: str,
    render: Render | None = None,
    timeout_s: float = 30.0,
    retry: Backoff | None = None,
    verify: Verify | None = None,
    registry: Registry = EFFECTS,
) -> Effect:
    """Declare an effect that sends a mail. Its data: ``to`` (an address or a list), ``subject``, ``text``, and ``html``
    if wanted; or ``render`` makes the message.

    What the server refuses is *failed* (5xx) or tried again (4xx, no connection): it said that it did not take the
    mail. A connection that breaks while the content is under way leaves it *unknown*. All recipients or none.
    """
    address = parseaddr(sender)[1]
    if "@" not in address:
        raise ConfigError(f"email {name!r}: sender is an address, like 'Shop <orders@shop.example>'")
    act = _Send(name, server, sender, render or _rendered, timeout_s)
    return registry.add(Effect(name, act, verify, timeout_s, retry or Backoff()))


class _Send:
    def __init__(self, name: str, server: SmtpServer, sender: str, render: Render, timeout_s: float) -> None:
        self.__module__ = __name__
        self.__qualname__ = f"email({name!r})"
        self._server = server
        self._sender = sender
        self._address = parseaddr(sender)[1]
        self._render = render
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"<{self.__qualname__} via {self._server!r}>"

    def __call__(self, request: EffectRequest) -> Any:
        message, recipients = self._message(request)
        with contextlib.ExitStack() as stack:
            deadline = stack.enter_context(Deadline(self._timeout_s))
            smtp = self._connect(deadline)
            stack.callback(smtp.close)
            self._envelope(smtp, recipients)
            # From here on an error that is not an answer of the server's leaves the outcome unknown.
            try:
                code, said = smtp.data(message.as_bytes(policy=_WIRE))
            except smtplib.SMTPDataError as error:  # the command itself was refused
                raise _refusal("DATA", error.smtp_code, _bytes(error.smtp_error)) from None
            except (OSError, smtplib.SMTPException) as error:
                if deadline.over:
                    raise TimeoutError(f"no answer to the content within {self._timeout_s:g} s") from error
                raise
            if code != 250:
                raise _refusal("DATA", code, said)
            with contextlib.suppress(smtplib.SMTPException, OSError):
                smtp.quit()
        return {"message_id": message["Message-ID"], "answer": clean(said.decode("utf-8", "replace"), 200)}

    def _message(self, request: EffectRequest) -> tuple[EmailMessage, list[str]]:
        try:
            message = self._render(request)
            recipients = _addresses(message.get_all(field, []) for field in ("To", "Cc", "Bcc"))
            if not recipients:
                raise EffectRefused("the mail has no recipient")
            if strange := [recipient for recipient in recipients if not recipient.isascii()]:
                raise EffectRefused(f"the address {strange[0]!r} needs SMTPUTF8, which is not offered")
            del message["Bcc"], message["Message-ID"]
            if message["From"] is None:
                message["From"] = self._sender
            if message["Date"] is None:
                message["Date"] = formatdate()
            message["Message-ID"] = f"<{request.idempotency_key}@{self._address.rpartition('@')[2]}>"
        except (KeyError, TypeError, ValueError) as error:
            raise EffectRefused(f"the mail cannot be made: {type(error).__name__}: {error}") from error
        return message, recipients

    def _connect(self, deadline: Deadline) -> smtplib.SMTP:
        server = self._server
        try:
            tls = trusting(server.ca_file) if server.security == "tls" else None
            smtp = _Session(server.host, server.port, deadline, tls)
            if server.security == "starttls":
                smtp.starttls(context=trusting(server.ca_file))
            if server.user is not None:
                smtp.login(server.user, server.password or "")
        except ssl.SSLCertVerificationError as error:
            raise refused(f"{server.host}:{server.port}", error) from None
        except smtplib.SMTPNotSupportedError as error:
            raise EffectRefused(f"{server.host}:{server.port} does not offer what is asked of it: {error}") from None
        except (OSError, smtplib.SMTPException) as error:  # nothing was sent; a wrong password can be mended
            code = getattr(error, "smtp_code", None)
            raise NotDone(
                f"no SMTP session with {server.host}:{server.port} ({type(error).__name__}, {code})"
            ) from None
        return smtp

    def _envelope(self, smtp: smtplib.SMTP, recipients: list[str]) -> None:
        try:
            smtp.ehlo_or_helo_if_needed()
            code, said = smtp.mail(self._address)
            if code != 250:
                raise _refusal(f"MAIL FROM {self._address}", code, said)
            for recipient in recipients:
                code, said = smtp.rcpt(recipient)
                if code not in (250, 251):
                    raise _refusal(f"RCPT TO {recipient}", code, said)
        except (OSError, smtplib.SMTPException) as error:
            raise NotDone(f"the SMTP session broke before the content ({type(error).__name__})") from None


class _Session(smtplib.SMTP):
    """One that ends with its deadline, and whose server cannot fill the memory with an answer. ``tls``: from the
    beginning."""

    def __init__(self, host: str, port: int, deadline: Deadline, tls: ssl.SSLContext | None) -> None:
        self._deadline = deadline
        self._tls = tls
        super().__init__(host, port, timeout=deadline.left_s())

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        plain = self._deadline.connect(host, port)
        return plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=host)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None:
            assert self.sock is not None
            self.file = _Bounded(self.sock.makefile("rb"))
        self.file.begin()
        return super().getreply()


class _Bounded:
    """What a server says. Raises ``smtplib.SMTPServerDisconnected`` within an answer of more than
    ``ANSWER_BYTES_MAX``."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._read = 0

    def begin(self) -> None:
        """An answer begins."""
        self._read = 0

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._file.readline(size)
        self._read += len(line)
        if self._read > ANSWER_BYTES_MAX:
            raise smtplib.SMTPServerDisconnected(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        if line and not line.endswith(b"\n"):  # smtplib would take it for an answer
            raise smtplib.SMTPServerDisconnected("an answer was cut off, or has a line that is too long")
        return line

    def close(self) -> None:
        self._file.close()


def _refusal(what: str, code: int, said: bytes) -> Exception:
    text = clean(f"{what}: {code} {said.decode('utf-8', 'replace')}", 500)
    return NotDone(text) if 400 <= code < 500 else EffectRefused(text)


def _bytes(said: bytes | str) -> bytes:
    return said.encode() if isinstance(said, str) else said


def _rendered(request: EffectRequest) -> EmailMessage:
    data = request.data
    message = EmailMessage()
    to = data["to"]
    message["To"] = to if isinstance(to, str) else ", ".join(to)
    message["Subject"] = data["subject"]
    message.set_content(data["text"])
    if data.get("html"):
        message.add_alternative(data["html"], subtype="html")
    return message


def _addresses(fields: Iterable[list[Any]]) -> list[str]:
    headers = [str(value) for values in fields for value in values]
    return list(dict.fromkeys(address for _, address in getaddresses(headers) if address))
