"""Acknowledgements of one RabbitMQ channel, settled by many tasks while the client's queue of frames is full."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from relevo.brokers.rabbitmq.shard import Shard


class Channel:
    """As strict as the server: a tag that is not open ends the channel. A frame may have to wait for its place."""

    def __init__(self, chance: random.Random, tags: int) -> None:
        self.open = set(range(1, tags + 1))
        self._chance = chance

    async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)
        if tag not in self.open:
            raise AssertionError(f"PRECONDITION_FAILED - unknown delivery tag {tag}")
        self.open -= {other for other in self.open if other <= tag} if multiple else {tag}


def shard_of(channel: Any, tags: int) -> Shard:
    shard = Shard("shop", 0, "billing:shop:0", channel, 1, 0)
    shard._tags.update({tag: tag for tag in range(1, tags + 1)})
    return shard


@pytest.mark.parametrize("seed", range(50))
async def test_nothing_is_acknowledged_twice(seed: int) -> None:
    """Many settle at once, in any order, some of it twice: each tag is acknowledged, and none that another frame has
    covered. (Seen now and then with a consumer under load: the channel was closed, and all of it came again.)"""
    chance = random.Random(seed)
    channel = Channel(chance, 60)
    shard = shard_of(channel, 60)
    positions = list(range(1, 61)) + chance.sample(range(1, 61), 10)
    chance.shuffle(positions)
    calls = []
    while positions:
        count = chance.randrange(1, 6)
        calls.append(shard.settle(positions[:count]))
        del positions[:count]
    await asyncio.gather(*calls)
    assert channel.open == set() and not shard._tags and not shard._done
