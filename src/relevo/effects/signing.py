"""Signatures of webhooks, as `Standard Webhooks <https://www.standardwebhooks.com>`_ writes them, so that receivers in
other languages have libraries for them: HMAC-SHA256 over id, timestamp and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Final

from relevo.errors import ConfigError

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

TOLERANCE_S: Final = 300.0
_PREFIX: Final = "whsec_"


def sign(secret: str | bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of ``webhook-signature``. ``secret``: bytes, text, or ``whsec_`` and base64."""
    content = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(secret_bytes(secret), content, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def verify_signature(
    secret: str | bytes | Sequence[str | bytes],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_s: float = TOLERANCE_S,
    now: float | None = None,
) -> bool:
    """Whether ``body``, exactly as it arrived, was signed with ``secret`` (or one of several, while it is exchanged)
    at most ``tolerance_s`` ago. Header names in any case. Takes the same time whatever differs. ``now``: Unix time.
    """
    given = {name.lower(): value for name, value in headers.items()}
    message_id, stamp, signatures = given.get(ID), given.get(TIMESTAMP), given.get(SIGNATURE)
    if message_id is None or stamp is None or signatures is None or not (stamp.isascii() and stamp.isdigit()):
        return False
    if len(stamp) > 12 or abs((time.time() if now is None else now) - int(stamp)) > tolerance_s:
        return False
    secrets = [secret] if isinstance(secret, (str, bytes)) else list(secret)
    good = False
    for one in secrets:
        expected = sign(one, message_id, int(stamp), body).encode()
        for candidate in signatures.encode("utf-8", "replace").split():
            good |= hmac.compare_digest(expected, candidate)
    return good


def secret_bytes(secret: str | bytes) -> bytes:
    """The key itself. Raises ``ConfigError`` for an empty one and for broken base64 behind ``whsec_``."""
    if isinstance(secret, str):
        if secret.startswith(_PREFIX):
            try:
                secret = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
            except binascii.Error:
                raise ConfigError("a secret that begins with whsec_ goes on in base64") from None
        else:
            secret = secret.encode()
    if not secret:
        raise ConfigError("the secret of a webhook is empty")
    return secret
