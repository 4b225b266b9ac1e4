"""Effects for a process of its own, which the tests kill and freeze. Each act leaves a line in a file, as a provider
would keep it. Run with `relevo effects run`."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from relevo import Backoff
from relevo.effects import Done, EffectRequest, NotDone, effect

PROVIDER = Path(os.environ.get("TEST_PROVIDER", "provider.txt"))
QUICK = Backoff(attempts=5, base=timedelta(milliseconds=5), cap=timedelta(milliseconds=50))


def _book(request: EffectRequest) -> None:
    with PROVIDER.open("a") as file:
        file.write(f"{request.idempotency_key} {request.key}\n")
        file.flush()
        os.fsync(file.fileno())


def look_up(request: EffectRequest) -> Done | NotDone:
    booked = PROVIDER.exists() and str(request.idempotency_key) in PROVIDER.read_text()
    return Done("found") if booked else NotDone("no such charge")


@effect("charge-card", verify=look_up, timeout_s=1.0, retry=QUICK)
def charge(request: EffectRequest) -> None:
    _book(request)


@effect("ring-bell", timeout_s=1.0, retry=QUICK)
def ring(request: EffectRequest) -> None:
    _book(request)
