"""Dead letters of one consumer: published after what they are copies of was held, by one of its processes for all.

A letter is written in the transaction that gives its message up, so a crash loses none; it is removed when the broker
has confirmed it, so a crash in between sends it again under the same id. Nothing else waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from relevo.consumer.consumer import Consumer
from relevo.consumer.shared import Shared
from relevo.errors import LostOwnershipError, RelevoError
from relevo.message import Message
from relevo.outcome import PublishOutcome, Rejected
from relevo.policy import PROBE_BACKOFF
from relevo.ports.broker import Broker, Publisher
from relevo.ports.database import Dialect
from relevo.relay.sending import send
from relevo.runtime.dead_letters import dead_letter, ensure, said
from relevo.runtime.probes import probe
from relevo.runtime.texts import describe
from relevo.script import Script
from relevo.settings import Settings
from relevo.storage import duties, lettering
from relevo.storage.duties import Duty
from relevo.storage.holding import KeyId, Why
from relevo.storage.lettering import Letter
from relevo.tasks import Kept

log = logging.getLogger("relevo.consumer")

BATCH = 100
POLL_S = 2.0
"""How often letters are looked for that another process wrote and did not publish."""
OURS = "unpublishable"
"""Code of a letter that never came as far as the broker."""
REFUSED_MAX_S = 300.0
"""Longest wait before a letter that the broker refused is tried again."""


def given_up(
    shared: Shared, id: KeyId, message: Message, *, position: int | None, shard: str, why: Why, attempts: int
) -> Script[None]:
    """In the transaction that holds or skips ``message``: its letter, if this consumer writes any."""
    if shared.dead_letters:
        letter = dead_letter(id, message, position=position, shard=shard, why=why, attempts=attempts)
        yield from lettering.add(shared.name, letter)


def writes_letters(consumer: Consumer, settings: Settings) -> bool:
    """As ``[consumers."NAME"] dead_letters`` says, else as its code does."""
    named = settings.consumers.get(consumer.name)
    return consumer.dead_letters if named is None or named.dead_letters is None else named.dead_letters


async def let_go(shared: Shared, looking: Kept, publishing: Kept, wait_s: float) -> None:
    """End what runs beside the messages of an engine that is stopping. Letters that are with the broker are waited for,
    ``wait_s`` at most; the others are for another process or the next start."""
    looking.cancel()
    shared.letters_wanted.set()
    if wait_s and shared.database.reason is None:
        await asyncio.wait([publishing.over], timeout=wait_s)
    publishing.cancel()
    await asyncio.wait([looking.over, publishing.over])


class Letters:
    """Publishes until the engine stops. ``problem``: why none gets through, in plain words."""

    def __init__(self, shared: Shared, broker: Broker, settings: Settings, dialect: Dialect) -> None:
        self._shared = shared
        self._broker = broker
        self._settings = settings
        self._dialect = dialect
        self._publisher: Publisher | None = None
        self._ensured: set[str] = set()
        self._failures = 0
        self._away: dict[str, float] = {}
        """Topics that took nothing, and when (loop time) to try them again: they keep no others back."""
        self._published = False
        self._waiting = lettering.Waiting(0, 0)
        self.problem: str | None = None

    def snapshot(self) -> dict[str, Any]:
        """For ``/status``."""
        return {"waiting": self._waiting.letters, "refused": self._waiting.refused, "problem": self.problem}

    async def run(self) -> None:
        """Ends when the engine is stopping. Also for a consumer that writes none: some may be left of earlier."""
        shared = self._shared
        try:
            while not shared.interrupt.stopping:
                shared.letters_wanted.clear()
                try:
                    wait_s = await self._turn()
                except Exception as error:
                    log.error("consumer %s: publishing dead letters failed", shared.name, exc_info=error)
                    wait_s = self._trouble(": ".join(describe(error)))
                if wait_s and not shared.interrupt.stopping:
                    await self._wait(wait_s)
            if self._published:
                await shared.database.run(partial(duties.leave, shared.owner))
        finally:
            if self._publisher is not None:
                await self._publisher.aclose()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._shared.letters_wanted.wait()
        except TimeoutError:
            pass

    async def _turn(self) -> float:
        """Publish some; seconds until the next turn."""
        database, name = self._shared.database, self._shared.name
        self._waiting = await database.run(partial(lettering.waiting, name), read_only=True)
        if not self._waiting.letters:
            self.problem = None
            return POLL_S
        lease_s = self._shared.lease_s
        duty = await database.run(partial(duties.take, f"dead letters of {name}", self._shared.owner, lease_s))
        if duty is None:
            return min(POLL_S, lease_s / 3)
        self._published = True
        now = asyncio.get_running_loop().time()
        waiting_s = [until - now for until in self._away.values() if until > now]
        without = self._shared.pauses.destinations | {topic for topic, until in self._away.items() if until > now}
        letters = await database.run(partial(lettering.page, self._dialect, name, BATCH, without_topics=without))
        if not letters:  # refused ones, which wait, topics that are away, or paused by somebody
            return min([POLL_S, *waiting_s])
        try:
            return await self._publish(duty, letters)
        except LostOwnershipError:
            return lease_s / 3
        except RelevoError as error:
            return self._trouble(str(error))

    async def _publish(self, duty: Duty, letters: list[Letter]) -> float:
        unsure = await self._ensure({letter.message.topic for letter in letters})
        publisher = self._publisher
        if publisher is None:
            publisher = self._publisher = await self._broker.publisher(
                source=self._settings.source_uri, send_timeout_s=self._settings.relay.send_timeout_s
            )
        outcomes = await self._send(publisher, letters)
        probe("letters.published")
        sent = [letter.letter_id for index, letter in enumerate(letters) if index not in outcomes]
        refused = {}
        for index, outcome in outcomes.items():
            if isinstance(outcome, Rejected):
                letter = letters[index]
                told = f"it cannot be published: {outcome.reason}" if outcome.code == OURS else said(outcome)
                problem = "; ".join(filter(None, (told, unsure)))
                refused[letter.letter_id] = (problem, min(REFUSED_MAX_S, 2.0 ** min(letter.refusals, 16)))
                log.warning(
                    "consumer %s: dead letter %s was not taken by %s and is tried again; its message stays held (%s)",
                    *(self._shared.name, letter.message.event_id, letter.message.topic, problem),
                )
                self._ensured.discard(letter.message.topic)
        await self._shared.database.run(partial(lettering.settle, duty, sent, refused))
        probe("letters.settled")
        away = {
            letters[index].message.topic: outcome
            for index, outcome in outcomes.items()
            if not isinstance(outcome, Rejected)
        }
        for topic in {letter.message.topic for letter in letters} - away.keys():
            self._away.pop(topic, None)
        if away:
            until = asyncio.get_running_loop().time() + self._trouble(said(next(iter(away.values()))))
            self._away |= dict.fromkeys(away, until)
        elif not self._away:
            self._failures = 0
            self.problem = next(iter(refused.values()))[0] if refused else None
        return 0.0

    async def _send(self, publisher: Publisher, letters: list[Letter]) -> dict[int, PublishOutcome]:
        """Outcomes by index, of those not accepted. A letter that cannot be read, or that the publisher fails at, is
        refused by itself."""
        outcomes: dict[int, PublishOutcome] = {
            index: Rejected(OURS, letter.unreadable)
            for index, letter in enumerate(letters)
            if letter.unreadable is not None
        }
        readable = [index for index in range(len(letters)) if index not in outcomes]
        try:
            found = await send(publisher, [letters[index].message for index in readable])
            return outcomes | {readable[place]: outcome for place, outcome in found.items()}
        except RelevoError:
            raise
        except Exception as error:
            name = self._shared.name
            log.error("consumer %s: sending dead letters failed, so they are sent one by one", name, exc_info=error)
        for index in readable:
            try:
                found = await send(publisher, [letters[index].message])
            except RelevoError:
                raise
            except Exception as error:  # noqa: BLE001 - this letter alone
                outcomes[index] = Rejected(OURS, ": ".join(describe(error)))
            else:
                outcomes |= {index + place: outcome for place, outcome in found.items()}
        return outcomes

    async def _ensure(self, topics: set[str]) -> str:
        """What went wrong when a topic was to be made: it may be there all the same, so publishing is tried."""
        unsure = ""
        for topic in sorted(topics - self._ensured):
            try:
                await ensure(self._broker, topic)
            except RelevoError as error:
                unsure = f"it could not be made sure that {topic} is there: {error}"
            else:
                self._ensured.add(topic)
        return unsure

    def _trouble(self, reason: str) -> float:
        self._failures += 1
        if self.problem is None:
            log.warning(
                "consumer %s: dead letters wait and are tried again by themselves; their messages stay held (%s)",
                *(self._shared.name, reason),
            )
        self.problem = reason
        return PROBE_BACKOFF.delay_s(self._failures)
