"""From outcomes to dispositions: pure, and nothing of a key gets past what was not accepted."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from uuid import UUID

import pytest

from relevo.message import Message
from relevo.outcome import Cancelled, Duplicate, PublishOutcome, Rejected, Unavailable, Unconfirmed
from relevo.policy import OnRejected, Policy
from relevo.ports.source import Taken
from relevo.relay.dispositions import Verdict, judge
from relevo.relay.flight import key_name


def page(*keys: str | None, topic: str = "t") -> Taken:
    messages = [
        Message(
            event_id=UUID(int=number + 1),
            type="t.x",
            topic=topic,
            payload=b"",
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            key=key.encode() if key is not None else None,
        )
        for number, key in enumerate(keys)
    ]
    return Taken(list(range(1, len(keys) + 1)), [0] * len(keys), messages, exhausted=True)


def verdict(
    taken: Taken,
    outcomes: dict[int, PublishOutcome],
    on_rejected: OnRejected = "park",
    behind: dict[int, tuple[str, bytes]] | None = None,
) -> Verdict:
    return judge(
        taken, behind or {}, outcomes, lambda topic: Policy(on_rejected=on_rejected), key_name, random.Random(1)
    )


def actions(found: Verdict) -> dict[int, str]:
    return {index: disposition.action for index, disposition in found.dispositions.items()}


def test_a_clean_page_costs_no_object_per_message() -> None:
    assert verdict(page("a", "b"), {}).dispositions == {}


def test_a_duplicate_counts_as_delivered() -> None:
    """FAILURES row 21 (the relay's part): "duplicate" from the broker is as good as accepted."""
    assert actions(verdict(page("a"), {0: Duplicate()})) == {}


def test_rejected_holds_it_and_what_stopped_behind_it() -> None:
    found = verdict(
        page("a", "b", "a", "a"), {0: Rejected("big", "x"), 2: Unconfirmed("behind"), 3: Unconfirmed("behind")}
    )
    assert actions(found) == {0: "hold", 2: "behind", 3: "behind"}
    assert found.held == {("t", b"a")}
    assert found.dispositions[0].code == "big"
    assert not found.pauses


def test_a_keyless_message_is_held_alone() -> None:
    found = verdict(page(None, None), {0: Rejected("big", "x")})
    assert actions(found) == {0: "hold"}
    assert found.held == {("t", UUID(int=1).bytes)}


def test_skip_passes_it_and_hands_the_rest_of_the_key_back() -> None:
    found = verdict(page("a", "a"), {0: Rejected("big", "x"), 1: Unconfirmed("behind")}, "skip")
    assert actions(found) == {0: "skip", 1: "back"}
    assert not found.held


def test_block_blocks_the_destination() -> None:
    found = verdict(page("a", "a"), {0: Rejected("big", "x"), 1: Unconfirmed("behind")}, "block")
    assert actions(found) == {0: "back", 1: "back"}
    assert "t" in found.blocks
    assert not found.held


@pytest.mark.parametrize("outcome", [Unavailable("away"), Unconfirmed("lost"), Cancelled()])
def test_what_is_nobodys_fault_is_handed_back(outcome: PublishOutcome) -> None:
    found = verdict(page("a", "a"), {0: outcome, 1: Unconfirmed("behind")})
    assert actions(found) == {0: "back", 1: "back"}
    assert not found.held
    assert bool(found.pauses) == isinstance(outcome, Unavailable)


def test_messages_of_held_keys_stay_behind_unsent() -> None:
    found = verdict(page("a", "b"), {}, behind={0: ("t", b"a")})
    assert actions(found) == {0: "behind"}


@pytest.mark.parametrize("seed", range(300))
def test_no_key_is_overtaken_whatever_happens(seed: int) -> None:
    """After the first message of a key that is not published, no later one of it is: for a prefix-safe publisher."""
    chance = random.Random(seed)
    taken = page(*[chance.choice("abc") for _ in range(12)])
    outcomes: dict[int, PublishOutcome] = {}
    stopped: set[bytes | None] = set()
    for index, message in enumerate(taken.messages):
        if message.key in stopped:
            outcomes[index] = Unconfirmed("behind")
        elif chance.random() < 0.2:
            outcomes[index] = chance.choice((Rejected("c", "r"), Unavailable("u"), Unconfirmed("n"), Cancelled()))
            stopped.add(message.key)
    found = verdict(taken, outcomes, chance.choice(("park", "skip", "block")))
    passed: set[bytes | None] = set()
    for index, message in enumerate(taken.messages):
        disposition = found.dispositions.get(index)
        if disposition is None or disposition.action == "skip":
            assert message.key not in passed, f"{index} of {message.key!r} overtook an earlier one"
        else:
            passed.add(message.key)
