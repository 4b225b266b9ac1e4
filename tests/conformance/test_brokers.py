"""Our brokers, through the suite that every broker passes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from relevo.brokers import broker_for

pytest.register_assert_rewrite("relevo.testing.broker_conformance", "relevo.testing.broker_processes")

from relevo.testing.broker_conformance import BrokerConformance  # noqa: E402


class TestEmbedded(BrokerConformance):
    @pytest.fixture
    def make_broker(self, tmp_path: Path) -> Any:
        return functools.partial(broker_for, f"embedded:{tmp_path}/broker.db", {"lease_s": 1.5, "auto_create": False})


class TestKafka(BrokerConformance):
    @pytest.fixture
    def make_broker(self, kafka_url: str) -> Any:
        return functools.partial(broker_for, kafka_url, {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500})
