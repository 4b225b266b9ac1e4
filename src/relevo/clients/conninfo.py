"""How libpq connects for us: with a bound, and with TCP that notices a peer that is gone; the URL's own goes first."""

from __future__ import annotations

import math
from typing import Any, Final

from relevo.bounds import keepalives
from relevo.errors import ConfigError
from relevo.settings import redact_text

GONE_MAX_S: Final = 30.0
"""The system need not wait longer for a peer that acknowledges nothing, however long a statement may take."""

TEXT: Final = {"client_encoding": "UTF8"}


BOUNDS: Final = ("connect_timeout", *keepalives(GONE_MAX_S), *TEXT)
"""Names of the parameters that are added."""


def connecting(conninfo: str, answer_s: float, bound_s: float) -> dict[str, Any]:
    """All parameters of ``conninfo``, with those that it does not set itself. Text goes as UTF-8 always, even if
    URL, role or database say otherwise: messages and errors carry any. Raises ``ConfigError`` for what libpq cannot
    read."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(conninfo)
    except ProgrammingError as error:
        raise ConfigError(f"database.url is none that libpq reads: {redact_text(str(error).strip())}") from None
    ours = {"connect_timeout": max(2, math.ceil(bound_s)), **keepalives(min(answer_s, GONE_MAX_S))}
    return {**ours, **given, **TEXT}


def total_s(params: dict[str, Any]) -> float:
    """Seconds after which connecting is given up: libpq's own bound is per address, and looking names up has none."""
    given = int(params["connect_timeout"])
    hosts = str(params.get("host", "")).count(",") + 1
    return 2.0 * max(2, given or 60) * hosts  # a name may stand for two addresses
