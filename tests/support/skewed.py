"""``python -m tests.support.skewed SECONDS ARGUMENT…``: ``relevo ARGUMENT…`` in a process whose wall clock is wrong by
so much, for all that Python asks. Clocks for durations are right; the servers' and SQLite's own are not touched."""

from __future__ import annotations

import datetime
import sys
import time
from typing import Any

# Loaded while the clock is right: they know `datetime` by its class.
import click  # noqa: F401
import msgspec  # noqa: F401


class _Meta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _REAL)


_REAL = datetime.datetime


def skew(seconds: float) -> None:
    """From now on. Nothing of Relevo may be loaded yet: it would hold the right clock."""
    assert not any(name.partition(".")[0] == "relevo" for name in sys.modules)
    for driver in ("psycopg", "confluent_kafka", "aio_pika", "sqlite3"):
        __import__(driver)
    real_time, real_time_ns = time.time, time.time_ns
    delta = datetime.timedelta(seconds=seconds)

    class Skewed(datetime.datetime, metaclass=_Meta):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return (_REAL.now(datetime.UTC) + delta).astimezone(tz) if tz else _REAL.now() + delta

        @classmethod
        def utcnow(cls) -> Any:
            return _REAL.now(datetime.UTC).replace(tzinfo=None) + delta

        @classmethod
        def today(cls) -> Any:
            return _REAL.now() + delta

    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_time_ns() + int(seconds * 1e9)
    datetime.datetime = Skewed  # type: ignore[misc]


if __name__ == "__main__":
    skew(float(sys.argv[1]))
    sys.argv = ["relevo", *sys.argv[2:]]
    from relevo.cli.main import main

    main()
