"""URLs fit for logs."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_PASSWORD = re.compile(r"(?i)(password|passwd|pwd|secret|token|key)=([^&\s]+)")


def redact(url: str) -> str:
    """``url`` fit for logs: user kept, password and secret-looking query values replaced by ``***``."""
    try:
        parts = urlsplit(url)
        host = parts.netloc
    except ValueError:
        return "<unreadable URL>"
    if "@" in host:
        user, _, place = host.rpartition("@")
        host = f"{user.partition(':')[0]}:***@{place}" if ":" in user else f"{user}@{place}"
        url = urlunsplit(parts._replace(netloc=host))
    return _PASSWORD.sub(r"\1=***", url)
