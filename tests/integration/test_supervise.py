"""Signals to a real process: the first drains, the second leaves, and a drain that takes too long is cut short."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PROGRAM = """
import asyncio, logging, sys
from relevo.errors import RelevoError
from relevo.runtime.supervise import supervise
logging.basicConfig(level="INFO", stream=sys.stderr)

async def work(stop):
    print("ready", flush=True)
    try:
        await stop.wait()
        print("draining", flush=True)
        if {drains}:
            print("done", flush=True)
            return
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise

try:
    asyncio.run(supervise(work, stop_timeout_s={timeout_s}))
except RelevoError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


@contextmanager
def _process(*, drains: bool, timeout_s: float = 60) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(drains=drains, timeout_s=timeout_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _expect(process, "ready")
        yield process
    finally:
        process.kill()
        process.communicate()


def _expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(number: signal.Signals) -> None:
    with _process(drains=True) as process:
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output) == (0, "draining\ndone\n")
        assert number.name in errors and "A second signal leaves at once" in errors


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_leaves_at_once(number: signal.Signals, exit_code: int) -> None:
    with _process(drains=False) as process:
        process.send_signal(signal.SIGTERM)
        _expect(process, "draining")
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == exit_code
        assert output.startswith("cancelled\na second signal came")


def test_a_drain_that_takes_too_long_is_cut_short() -> None:
    with _process(drains=False, timeout_s=0.2) as process:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "cancelled\nnot finished after" in output
