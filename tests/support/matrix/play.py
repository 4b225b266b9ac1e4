"""One row of the matrix from beginning to end."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import replace
from pathlib import Path

from tests.support.freezing import state
from tests.support.ledger.child import Child
from tests.support.matrix.cases import Case
from tests.support.matrix.scenario import Scenario
from tests.support.matrix.scenarios import VISITS, scenario_for
from tests.support.matrix.system import LEASE_S, PAGE, Stack, System, past
from tests.support.matrix.wire import Wire
from tests.support.relay_processes import under_way

SAYS = {"kill": "SIGKILL", "freeze": "SIGSTOP", "cut": "CUT"}
PATIENCE_S = 60.0
LAST_STEP_S = 45.0
"""How long the last step, after which nothing else is tried, may take to lead to the point."""


def play(case: Case, stack: Stack, folder: Path) -> str:
    """Raises AssertionError when anything does not hold; what happened, in a few words."""
    kind = scenario_for(case.point, case.part)
    stack = replace(stack, options={**stack.options, **kind.options.get(stack.name, {})})
    with System(stack, folder, kind.switches, kind.after_s, kind.settings, patient=not kind.repeats) as system:
        scenario = kind(system, f"{case.point}={case.action}:{VISITS.get(case.point, 1)}")
        armed = _reach(case, system, scenario)
        _prove_and_heal(case, system, scenario, armed)
        scenario.finish()
        system.wait(lambda: _over(system, scenario), f"{case}: everything arrived", PATIENCE_S)
        account = system.account()
        assert account.holds, "\n".join([str(account), *system.tails()])
        scenario.check()
        repeats = explain(case, system, scenario)
        return f"{account.committed} events, {repeats} repeated on the wire"


def _reach(case: Case, system: System, scenario: Scenario) -> Child:
    scenario.prepare()
    for role in scenario.others():
        system.start(role)
    scenario.before()
    armed = scenario.arm()
    line = f"probe {case.point}: {SAYS[case.action]}"
    scenario.hit = lambda: line in armed.log.read_text("utf-8", "replace")
    steps = scenario.steps()
    for number, step in enumerate(steps, 1):
        step()
        with contextlib.suppress(AssertionError):
            wait_s = scenario.step_s if number < len(steps) else LAST_STEP_S
            system.wait(lambda: scenario.hit() or not armed.running, "", wait_s)
        if scenario.hit():
            return armed
    ended = "" if armed.running else "; the process ended by itself"
    raise AssertionError(
        f"{case.point} was not reached by {type(scenario).__name__}{ended}: give it a step that leads there, in "
        f"tests/support/matrix/scenarios.py\n{system.account()}, unsettled {system.unsettled()}\n"
        + "\n".join(system.tails())
    )


def _prove_and_heal(case: Case, system: System, scenario: Scenario, armed: Child) -> None:
    """Killed: starts again. Frozen: another takes over, and it wakes up after its lease. Cut: it helps itself."""
    process = armed.process
    assert process is not None
    if case.action == "kill":
        assert process.wait(10) == -signal.SIGKILL, armed.tail()
        scenario.again()
    elif case.action == "freeze":
        system.wait(lambda: state(process.pid) == "T", "the process stands still", 10)
        scenario.again()
        over = past(max(2 * LEASE_S, system.stack.settles_s + 1.0))
        system.wait(over, "its lease is over")
        assert state(process.pid) == "T"
        process.send_signal(signal.SIGCONT)
    else:
        system.wait(lambda: "cut " in armed.log.read_text("utf-8", "replace"), "the connections are cut", 10)
        (number,) = [line for line in armed.log.read_text("utf-8", "replace").splitlines() if line.startswith("cut ")]
        assert int(number.split()[1]) > 0, "it had no connection"
    if scenario.command and case.action != "kill":
        system.wait(lambda: not armed.running, "the command ends")
        assert "Traceback" not in armed.tail(), armed.tail()
        if process.poll() != 0 and case.action == "cut":  # after a freeze it is another one that did it
            scenario.again()


def _over(system: System, scenario: Scenario) -> bool:
    for child in system.children:
        code = child.process.poll() if child.process is not None and "operator" not in child.name else None
        assert code in (None, 0, -signal.SIGKILL), f"{child.name} ended by itself with {code}:\n{child.tail()}"
    account = system.account()
    wrong = account.twice or account.out_of_order or account.undone_but_seen or account.unexplained
    return bool(wrong) or (account.holds and scenario.done())


def explain(case: Case, system: System, scenario: Scenario) -> int:
    """Everything committed is on the wire, in order; what is there again is what the point accounts for: at most
    what was under way, and only if it was the relay that was hit. Beside that the broker may have been slow for longer
    than such a relay waits, once."""
    wire: Wire = system.on_the_wire()
    committed = {event_id for (event_id,) in system.query("select event_id from ledger_change")}
    tails = "\n".join(system.tails())
    assert wire.ids == committed, f"{len(wire.ids)} on the wire, {len(committed)} committed\n{tails}"
    assert not wire.swapped, f"{wire.swapped}\n{tails}"
    if not scenario.repeats:
        assert wire.repeats == 0, f"{wire.repeats} repeated, but {case.point} is no point of a relay\n{tails}"
    most = 2 if case.action == "kill" else 3
    if system.stack.source != "wal":  # which saves its position a few times a second
        flying = under_way(VISITS.get(case.point, 1), PAGE) + under_way(1, PAGE)
        assert wire.repeats <= flying, f"{wire.repeats} repeated: more than was under way\n{tails}"
    assert all(restarts <= most for restarts in wire.restarts.values()), f"{wire.restarts}\n{tails}"
    if case.action == "kill" and case.point in ("relay.confirmed", "relay.drain_sent"):
        assert wire.repeats > 0, "killed between the confirmation and the settlement: it must be there again"
    return wire.repeats
