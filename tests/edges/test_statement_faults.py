"""Every statement that a long-running process executes fails once, in every way a database can: it goes on by itself.

``make test`` has each statement once, with a fault that rotates, a few statements at a time; ``make soak`` has each
statement of each world with every fault, one by one.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import cycle
from pathlib import Path

import pytest

from relevo.catalog import _statements
from relevo.telemetry import often
from tests.edges.statements import AT_STOPS, CONFLICTS, ELSEWHERE, HIDDEN, MEETS, PARKS, STAYS_READY, WORLDS
from tests.support.statement_faults import (
    AFTER,
    AT_ENDS,
    BY_BAD_ROWS,
    BY_PAUSES,
    FAULTS,
    STATES,
    WAYS,
    World,
    world_of,
)
from tests.support.waiting import eventually

AT_ONCE = 4
"""Statements that fail in one round of the short form."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xdist_group("faults-log" if name == "log" else "faults-others"))
        for name in WORLDS
    ],
)
async def test_each_statement_once(
    name: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = WORLDS[name]
    quick = [fault for fault in FAULTS if fault not in ("never", "late")]
    turn = cycle(quick[place:] + quick[:place] if (place := list(WORLDS).index(name)) else quick)
    cases = [dict.fromkeys(some, "") for some in together(world.once)]
    cases = [{statement: next(turn) for statement in case} for case in cases]
    cases += [{statement: fault} for statement, fault in world.slow]
    async with world_of(postgres_url, tmp_path, monkeypatch, world) as running:
        failed = await play(running, cases, caplog)
    assert not failed, failed


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", WORLDS)
async def test_each_statement_in_every_way(
    name: str,
    fault: str,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = WORLDS[name]
    async with world_of(postgres_url, tmp_path, monkeypatch, world) as running:
        first = sorted(world.statements, key=lambda statement: statement not in HIDDEN)
        failed = await play(running, [{statement: fault} for statement in first], caplog)
    assert not failed, failed


LASTS = {
    "log": ("log.page", "lanes.renew", "purge.now", "journal.take", "inbox.insert_live", "held.first", "letters.page"),
    "groups": ("groups.renew", "groups.save"),
    "kept": ("performing.release",),
}
"""A statement of each loop."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group("faults-others")) for name in LASTS])
async def test_a_statement_of_each_loop_fails_for_long(
    name: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, turn = WORLDS[name], cycle(("57014", "25006", "53100", "cut"))
    async with world_of(postgres_url, tmp_path, monkeypatch, world) as running:
        for statement in LASTS[name]:
            await last(running, statement, next(turn))


@pytest.mark.soak
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("never", "late")])
@pytest.mark.parametrize("name", WORLDS)
async def test_each_statement_fails_for_long(
    name: str, fault: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = WORLDS[name]
    failed: dict[str, str] = {}
    async with world_of(postgres_url, tmp_path, monkeypatch, world) as running:
        for statement in world.once:
            if statement in HIDDEN:
                continue
            try:
                if statement in AT_ENDS or statement in AT_STOPS:
                    await last_at_ends(running, statement, fault)
                elif statement in PARKS or (fault in CONFLICTS and statement in MEETS):
                    await park_or_pass(running, statement, fault)
                else:
                    await last(running, statement, fault)
            except AssertionError as error:
                failed[statement] = str(error)[:500]
                print(f"LASTING {statement}: {failed[statement]}", flush=True)
                running.faults.disarm()
                await running.settle(f"{statement} no longer fails: {fault}")
    assert not failed, failed


def test_every_statement_is_classified() -> None:
    """A new statement is reached by a world, or it is said who else executes it."""
    reached = {statement for world in WORLDS.values() for statement in world.statements}
    assert not reached & ELSEWHERE.keys()
    assert set(_statements("postgresql")) == reached | ELSEWHERE.keys()


def together(statements: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A few at a time, of those that are brought about in the same way."""
    found: list[tuple[str, ...]] = []
    by_ways = [frozenset(name for name, way in WAYS.items() if way is each) for each in dict.fromkeys(WAYS.values())]
    others = frozenset(statements) - AT_ENDS - BY_PAUSES - BY_BAD_ROWS - AFTER.keys() - WAYS.keys()
    for way in (AT_ENDS, BY_PAUSES, BY_BAD_ROWS, frozenset(AFTER), others, *by_ways):
        some = tuple(statement for statement in statements if statement in way)
        found += [some[place : place + AT_ONCE] for place in range(0, len(some), AT_ONCE)]
    return found


async def play(world: World, cases: list[dict[str, str]], caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Provoke one after the other; the ledger is even after each, and the log has each statement that failed. What went
    wrong, by case."""
    failed: dict[str, str] = {}
    for case in cases:
        often.flush()
        caplog.clear()
        caplog.set_level(logging.INFO)
        try:
            await world.provoke(case)
            await world.settle(f"{case} is over")
            await eventually(
                lambda case=case: all(said(caplog.records, *each) for each in case.items()), what=f"the log has {case}"
            )
        except AssertionError as error:
            failed[str(case)] = str(error)[:500]
            if len(failed) > 5:
                break
    return failed


async def last(world: World, statement: str, fault: str) -> None:
    """It fails each time until the process is not ready, and says which part has a problem; then it recovers."""
    world.unready = set()
    await world.provoke({statement: fault}, lasting=True)
    if statement not in STAYS_READY:
        await eventually(
            lambda: not world.healthy() and world.unready, what=f"unready while {statement} fails: {fault}"
        )
    world.faults.disarm()
    await world.settle(f"{statement} no longer fails: {fault}")


async def last_at_ends(world: World, statement: str, fault: str) -> None:
    """While it fails no process ends: a stop keeps its bound, and a start waits. Then all is as before."""
    for _ in range(4):
        world.faults.arm({statement: fault}, lasting=True)
        if way := WAYS.get(statement):
            await way(world)
        else:
            world.traffic()
            restarting = asyncio.create_task(world.restart())
            # A database that takes no writes ends a start after five seconds, as a mistake.
            await asyncio.wait([restarting], timeout=2.0 if fault == "25006" else 8.0)
            await asyncio.to_thread(world.struck_within, 2.0)
            world.faults.disarm()
            await restarting
        struck = world.faults.struck.is_set()
        world.faults.disarm()
        await world.settle(f"{statement} no longer fails: {fault}")
        if struck:
            return
    raise AssertionError(f"{statement}: not executed")


async def park_or_pass(world: World, statement: str, fault: str) -> None:
    """It fails until a message is parked for it, or goes on in its key's queue. An operator lets what is parked drain:
    nothing is lost, and nothing is swapped."""
    seen = world.faults.seen
    await world.provoke({statement: fault}, lasting=True)
    enough = seen[statement] + 25  # more than conflicts are not counted
    await eventually(
        lambda: world.parked() > world.rejected or (statement in MEETS and seen[statement] > enough),
        what=f"parked while {statement} fails: {fault}",
    )
    world.faults.disarm()
    await eventually(world.redriven, what=f"{statement} no longer fails: {fault}", timeout_s=30.0, every_s=0.2)
    await world.settle(f"{statement} no longer fails: {fault}")


def said(records: list[logging.LogRecord], name: str, fault: str) -> bool:
    """Whether a line of the default level names the statement and, where the server gave one, the code of its error. Of
    a stop that got no answer: what is left to expire."""
    for record in records:
        text = record.getMessage()
        if name == "groups.lag" and fault in ("never", "late") and "the lag is not known: no answer in time" in text:
            return True
        if name in AT_STOPS and fault in ("never", "late") and "could not be told what went back" in text:
            return True
        if name in AT_ENDS and fault in ("never", "late") and "left to expire" in text:
            return True
        if record.levelno >= logging.INFO and name in text and (fault not in STATES or fault in text):
            return True
    return False
