"""Readiness by the age of a success: idle is not sick, hanging without an error is, unknown is unknown."""

from __future__ import annotations

from datetime import UTC, datetime

from relevo.runtime.pulse import Pulse
from relevo.runtime.vitals import Vital, Vitals


class ManualClock:
    now = 100.0

    def seconds(self) -> float:
        return self.now

    def wall(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


def _vitals(clock: ManualClock) -> tuple[Pulse, Vitals]:
    pulse = Pulse(clock)
    return pulse, Vitals(pulse, [Vital("renewal", "keeping the lease", 10.0), Vital("publish", "publish", 4.0)])


def test_what_never_had_anything_to_do_is_unknown_and_no_problem() -> None:
    clock = ManualClock()
    _, vitals = _vitals(clock)
    clock.now += 1_000_000
    assert vitals.problems() == {}
    assert vitals.ages()["publish"] == {"age_s": None, "waiting_s": None, "limit_s": 4.0}


def test_an_hour_without_work_is_no_problem() -> None:
    clock = ManualClock()
    pulse, vitals = _vitals(clock)
    pulse.begin("publish")
    pulse.beat("publish")
    pulse.rest("publish")
    clock.now += 3600
    assert vitals.problems() == {}
    assert vitals.ages()["publish"] == {"age_s": 3600.0, "waiting_s": None, "limit_s": 4.0}


def test_work_after_an_idle_hour_has_its_whole_limit() -> None:
    clock = ManualClock()
    pulse, vitals = _vitals(clock)
    pulse.beat("publish")
    clock.now += 3600
    pulse.begin("publish")
    clock.now += 3.9
    assert vitals.problems() == {}
    clock.now += 0.2
    assert vitals.problems() == {"publish": "no success for 4 s (limit 4 s)"}
    pulse.beat("publish")
    assert vitals.problems() == {}


def test_trying_again_does_not_make_it_younger() -> None:
    """Each page fails after a while, and the next one begins: the clock runs from the first."""
    clock = ManualClock()
    pulse, vitals = _vitals(clock)
    for _ in range(5):
        pulse.begin("publish")
        clock.now += 1.0
    assert vitals.problems() == {"publish": "no success yet for 5 s (limit 4 s)"}


def test_successes_while_there_is_more_to_do_keep_it_well() -> None:
    clock = ManualClock()
    pulse, vitals = _vitals(clock)
    pulse.begin("publish")
    for _ in range(100):
        clock.now += 3.0
        pulse.beat("publish")
        assert vitals.problems() == {}
