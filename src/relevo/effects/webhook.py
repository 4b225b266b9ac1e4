"""A ready-made effect: a signed POST of JSON."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import SplitResult

import msgspec

from relevo._version import __version__
from relevo.effects import signing
from relevo.effects.declaring import EFFECTS, Effect, EffectRequest, Registry, Verify
from relevo.effects.posting import Answer, parse, post
from relevo.effects.trust import trusting
from relevo.effects.verdicts import EffectRefused, NotDone
from relevo.errors import ConfigError, RelevoError
from relevo.policy import Backoff
from relevo.runtime.texts import clean

Url = str | Callable[[EffectRequest], str]
Secret = str | bytes | Callable[[EffectRequest], str | bytes]

NOT_DONE: Final = (408, 425, 429)
"""Answers by which the receiver says that it did nothing and wants it later."""
RETRY_AFTER_MAX_S: Final = 3600.0


class UnclearAnswerError(RelevoError):
    """The receiver failed after it had the request: it may have acted on it."""


def webhook(
    name: str,
    *,
    url: Url,
    secret: Secret,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
    retry: Backoff | None = None,
    verify: Verify | None = None,
    idempotent: bool = False,
    allow_private: bool = False,
    ca_file: str | None = None,
    registry: Registry = EFFECTS,
) -> Effect:
    """Declare an effect that POSTs ``{"id", "type", "key", "data"}`` to ``url``.

    Signed with ``secret`` in ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature`` (``verify_signature`` is
    the other side); ``Idempotency-Key`` is the effect's. Redirects are not followed; an address that is not public is
    refused unless ``allow_private``. Over https the certificate is checked, by the system's authorities or by those of
    ``ca_file`` (PEM) alone; one that is not accepted is *failed*.

    2xx: done. 408, 425, 429 and no connection: tried again. Any other 3xx or 4xx: failed; 409 means *done before* from
    the second attempt on. 5xx, time-outs and broken connections: unknown, and sent again only if the receiver honours
    ``Idempotency-Key`` and you say so with ``idempotent=True``.
    """
    if isinstance(url, str):
        parse(url)
    if not callable(secret):
        signing.secret_bytes(secret)
    extra = {key.lower(): value for key, value in (headers or {}).items()}
    for reserved in (signing.ID, signing.TIMESTAMP, signing.SIGNATURE, "idempotency-key", "content-type", "host"):
        if reserved in extra:
            raise ConfigError(f"webhook {name!r}: the header {reserved!r} is set by Relevo")
    if ca_file is not None:
        trusting(ca_file)  # what cannot be read is told now
    act = _Post(name, url, secret, extra, timeout_s, allow_private, ca_file)
    return registry.add(Effect(name, act, verify, timeout_s, retry or Backoff(), idempotent))


class _Post:
    """The act. No secret in its ``repr``."""

    def __init__(
        self,
        name: str,
        url: Url,
        secret: Secret,
        headers: Mapping[str, str],
        timeout_s: float,
        allow_private: bool,
        ca_file: str | None,
    ) -> None:
        self.__module__ = __name__
        self.__qualname__ = f"webhook({name!r})"
        self._url = url
        self._secret = secret
        self._headers = headers
        self._timeout_s = timeout_s
        self._allow_private = allow_private
        self._ca_file = ca_file

    def __repr__(self) -> str:
        return f"<{self.__qualname__}>"

    def __call__(self, request: EffectRequest) -> Any:
        message_id = str(request.idempotency_key)
        document = {"id": message_id, "type": request.name, "key": request.key, "data": request.data}
        body = msgspec.json.encode(document)
        timestamp = int(time.time())
        secret = self._secret(request) if callable(self._secret) else self._secret
        headers = {
            "User-Agent": f"relevo/{__version__}",
            **self._headers,
            "Content-Type": "application/json",
            "Idempotency-Key": message_id,
            signing.ID: message_id,
            signing.TIMESTAMP: str(timestamp),
            signing.SIGNATURE: signing.sign(secret, message_id, timestamp, body),
        }
        answer = post(
            *(self._target(request), headers, body),
            timeout_s=self._timeout_s,
            allow_private=self._allow_private,
            ca_file=self._ca_file,
        )
        return _judge(answer, request.attempt)

    def _target(self, request: EffectRequest) -> SplitResult:
        try:
            return parse(self._url(request) if callable(self._url) else self._url)
        except ConfigError as error:
            raise EffectRefused(str(error)) from None


def _judge(answer: Answer, attempt: int) -> dict[str, Any]:
    status = answer.status
    said = f"HTTP {status}: {clean(answer.text, 500)}" if answer.text else f"HTTP {status}"
    if 200 <= status < 300:
        return {"status": status}
    if status == 409 and attempt > 1:
        return {"status": status, "duplicate": True}
    if status in NOT_DONE:
        raise NotDone(said, retry_after=_retry_after_s(answer.retry_after, answer.date))
    if 300 <= status < 400:
        raise EffectRefused(f"{said} (redirects are not followed: give the final URL)")
    if status < 500:
        raise EffectRefused(said)
    raise UnclearAnswerError(said)


def _retry_after_s(value: str | None, date: str | None) -> float | None:
    """``Retry-After``, seconds or a date, bounded. A date is held against the receiver's own ``Date``: its clock and
    ours may differ."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(float(value[:9]), RETRY_AFTER_MAX_S)
    then, now = _moment(value), _moment(date)
    if then is None:
        return None
    return min(max(0.0, (then - (now or datetime.now(UTC))).total_seconds()), RETRY_AFTER_MAX_S)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
