"""Brokers by URL, and what the docs say about them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from relevo.brokers import broker_for, capabilities_table
from relevo.brokers.kafka import outcomes
from relevo.brokers.rabbitmq import outcomes as rabbitmq_outcomes
from relevo.errors import ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "brokers.md"


@pytest.mark.parametrize("url", ["rabbit://host", "kafka", "", "kafkaa://host:1"])
def test_an_unknown_scheme_names_the_known_ones(url: str) -> None:
    with pytest.raises(ConfigError, match=r"embedded:, kafka:"):
        broker_for(url)


def test_passwords_are_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        broker_for("nats://me:hunter2@host:1")
    assert "hunter2" not in str(caught.value)


def test_adapters_load_no_client_until_asked() -> None:
    """The capability table needs no client of Kafka or RabbitMQ; neither does the embedded broker."""
    code = (
        "import sys; from relevo.brokers import broker_for, capabilities_table; capabilities_table();"
        "broker_for('embedded:x.db'); assert 'confluent_kafka' not in sys.modules;"
        "assert not {'aio_pika', 'aiormq'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_missing_extra_names_the_install_line() -> None:
    code = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from relevo.brokers import broker_for\nfrom relevo.errors import MissingExtraError\n"
        "try: broker_for('kafka://127.0.0.1:1')\n"
        "except MissingExtraError as error: assert \"pip install 'relevo[kafka]'\" in str(error)\n"
        "else: raise SystemExit('not raised')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("capabilities", capabilities_table),
        ("outcomes", outcomes.table),
        ("rabbitmq outcomes", rabbitmq_outcomes.table),
    ],
)
def test_the_docs_repeat_the_data(name: str, expected: object) -> None:
    """The tables of the reference are what the adapters declare."""
    text = DOCS.read_text("utf-8")
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert found is not None
    assert callable(expected)
    assert found[1] == expected(), f"docs/reference/brokers.md is out of date; the table is now:\n{expected()}"


@pytest.mark.parametrize("url", ["embedded:a.db", "kafka://127.0.0.1:9092", "amqp://127.0.0.1/", "postgres:///a"])
def test_an_option_that_moved_names_its_new_place(url: str) -> None:
    """One setting for one thing: how long a send may take is the relay's, for every broker."""
    with pytest.raises(ConfigError, match=r"'send_timeout_s' is not set here any more. Set relay\.send_timeout_s"):
        broker_for(url, {"send_timeout_s": 5.0})
