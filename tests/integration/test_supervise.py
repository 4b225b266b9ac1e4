"""Signals to a real process: the first drains, the second leaves, and a drain that takes too long is cut short."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.waiting import eventually_sync

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
        output = _signalled_until_it_leaves(process, number)
        assert process.returncode == exit_code
        assert output.startswith("cancelled\na second signal came")


def _signalled_until_it_leaves(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """What it printed. The signal is sent again until one is counted: what comes together counts as one."""
    assert process.stdout is not None
    lines: list[str] = []
    reading = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
    reading.start()
    eventually_sync(lambda: lines or process.send_signal(number), what="it is cancelled", every_s=0.05)
    process.wait(timeout=20)
    reading.join(timeout=20)
    return "".join(lines)


@pytest.mark.parametrize(
    "numbers", [(signal.SIGINT,) * 3, (signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)]
)
def test_signals_that_come_together_are_one(numbers: tuple[signal.Signals, ...]) -> None:
    """Ctrl+C reaches the whole process group, and a parent forwards it. All are pending when the loop looks again."""
    with _process(drains=True) as process:
        process.send_signal(signal.SIGSTOP)
        for number in numbers:
            process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output) == (0, "draining\ndone\n"), errors


def test_a_signal_sent_twice_while_it_drains_is_one() -> None:
    """The second half of a forwarded Ctrl+C comes when the first has begun to work, and does not cut it short."""
    with _process(drains=False, timeout_s=1.0) as process:
        process.send_signal(signal.SIGINT)
        _expect(process, "draining")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 1 and "not finished after" in output, "only the time-out ended it"


def test_a_drain_that_takes_too_long_is_cut_short() -> None:
    with _process(drains=False, timeout_s=0.2) as process:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "cancelled\nnot finished after" in output
