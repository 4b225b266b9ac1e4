"""From the broker's outcomes to what becomes of each taken message. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from relevo.decide import Again, HandBack, Park, Pause, Skip, decide
from relevo.outcome import PublishOutcome, Rejected
from relevo.outgoing import Sendable
from relevo.policy import Policy
from relevo.ports.source import Disposition, Taken

KeyName = tuple[str, bytes]


@dataclass(slots=True)
class Verdict:
    """``dispositions`` by index (a missing index was published). ``pauses`` and ``blocks``: topic → reason (and
    delay). ``held``: keys that this page makes held."""

    dispositions: dict[int, Disposition] = field(default_factory=dict)
    pauses: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, tuple[str, float]] = field(default_factory=dict)
    held: set[KeyName] = field(default_factory=set)


def judge(
    taken: Taken,
    behind: Mapping[int, KeyName],
    outcomes: Mapping[int, PublishOutcome],
    policy_of: Callable[[str], Policy],
    key_name: Callable[[Sendable], KeyName],
    rng: random.Random | None = None,
) -> Verdict:
    """What becomes of the messages of one page.

    ``behind``: indexes that were not sent, because their key is held. ``outcomes``: by index, those not accepted.
    Everything of a key after its first message that is not accepted stays behind it: held with it, or handed back.
    """
    verdict = Verdict()
    for index in behind:
        verdict.dispositions[index] = Disposition("behind")
    stopped: dict[KeyName, Disposition] = {}
    if not outcomes:
        return verdict
    for index in range(min(outcomes), len(taken)):
        if index in behind:
            continue
        message = taken.messages[index]
        name = key_name(message)
        outcome = outcomes.get(index)
        if name in stopped and outcome is not None:
            verdict.dispositions[index] = stopped[name]
            continue
        if outcome is None:
            continue
        code = outcome.code if isinstance(outcome, Rejected) else ""
        match decide(outcome, 1, policy_of(message.topic), rng):
            case Park(reason):
                verdict.dispositions[index] = Disposition("hold", reason, code)
                verdict.held.add(name)
                stopped[name] = Disposition("behind")
            case Skip(reason):
                verdict.dispositions[index] = Disposition("skip", reason, code)
                stopped[name] = Disposition("back")
            case Pause(reason):
                verdict.dispositions[index] = Disposition("back", reason)
                verdict.pauses[message.topic] = reason
                stopped[name] = Disposition("back")
            case Again(delay_s, reason):
                verdict.dispositions[index] = Disposition("back", reason)
                if isinstance(outcome, Rejected):
                    verdict.blocks[message.topic] = (reason, delay_s)
                stopped[name] = Disposition("back")
            case HandBack():
                verdict.dispositions[index] = Disposition("back")
                stopped[name] = Disposition("back")
            case _:
                pass
    return verdict
