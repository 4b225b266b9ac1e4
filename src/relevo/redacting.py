"""Secrets kept out of logs, errors and ``repr``: passwords in URLs, and secret-looking values in queries.

URLs are looked at as text and never parsed: drivers disagree about where a password that contains ``/``, ``?`` or
``#`` ends, and each of them connects with its own reading. Where the text may be read in two ways, only the scheme is
shown.
"""

from __future__ import annotations

import re

_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*)://([^\s'\"<>`]*)")
"""A URL in a text. One whose password contains a space or a quote is found by ``_UNFINISHED``."""
_UNFINISHED = re.compile(
    r"(?i)\b([a-z][a-z0-9+.-]*)://(?![^\s'\"<>`/?#]*@)[^\s/?#@:]*:(?!\d+(?:[\s/?#,;'\"<>`)\].]|$)).*@"
)
"""``scheme://user:…`` whose part before the ``@`` has a character that ends a URL in a text: up to the line's last."""
_SECRET = re.compile(
    r"(?i)(\b\w*(?:password|passwd|pwd|secret|token|apikey|api_key|credential)\w*)(\s*=\s*)"
    r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^&\s'\"]+)"
)
"""``password=…`` in a query or in a driver's ``name=value`` form, quoted or not."""
_SECRET_TO_END = re.compile(r"(?i)([?&]\w*(?:password|passwd|pwd|secret|token|credential|key)\w*=)[^&]*")
_HOST = re.compile(r"\[[^\]]*\](:\d*)?|[^:]*(:\d*)?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*")
_FILES = ("sqlite", "embedded", "file")

REDACTED = "***"


def redact(url: str) -> str:
    """``url``, which is one whole URL, fit for logs: the user is kept, and the password and secret-looking query values
    are replaced by ``***``. A URL that can be read in two ways becomes ``scheme://***``."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _SECRET.sub(rf"\1\2{REDACTED}", url)
    if any(character in scheme for character in "@ '\""):
        return REDACTED
    return _SECRET_TO_END.sub(rf"\1{REDACTED}", f"{scheme}://{_place(scheme, rest)}")


def redact_text(text: str) -> str:
    """``text`` with every URL in it as ``redact`` shows it, and without the values of ``password=…`` and its like."""
    if "://" in text:
        text = _UNFINISHED.sub(rf"\1://{REDACTED}@", text)
        text = _URL.sub(lambda found: f"{found[1]}://{_place(found[1], found[2])}", text)
    if "=" in text:
        text = _SECRET.sub(rf"\1\2{REDACTED}", text)
    return text


def _place(scheme: str, rest: str) -> str:
    """What follows ``://``, without the password."""
    if scheme.lower().partition("+")[0] in _FILES:
        return rest
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    authority, behind = rest[:end], rest[end:]
    if "@" in behind:
        return REDACTED  # a password with one of these characters, or an address in a path: not to be told apart
    user, at, host = authority.rpartition("@")
    if not at:
        return rest if _is_host(host) else REDACTED
    name, colon, _ = user.partition(":")
    return f"{name}:{REDACTED}@{host}{behind}" if colon else rest


def _is_host(authority: str) -> bool:
    """Whether an authority without ``@`` is hosts and ports, and not ``user:password`` cut off by a ``/``."""
    return all(_HOST.fullmatch(part) is not None for part in authority.split(","))
