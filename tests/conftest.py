"""Real servers for the tests, and the rules about them.

A server is found through RELEVO_TEST_POSTGRES_URL, RELEVO_TEST_KAFKA_URL or RELEVO_TEST_RABBITMQ_URL, else among those
of `make services-up`.
One that is missing skips the test; with RELEVO_REQUIRE_SERVICES=1 (as in CI) it fails it.
"""

from __future__ import annotations

import platform
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import settings

settings.register_profile("relevo", deadline=None)  # no test depends on a fast machine
settings.load_profile("relevo")

REPO = Path(__file__).resolve().parents[1]
if str(REPO) not in sys.path:
    sys.path.insert(0, str(REPO))  # for tools.services, also when pytest is not started from the repository

from tests.support.matrix.report import pytest_terminal_summary  # noqa: E402, F401 - a hook
from tests.support.missing import missing  # noqa: E402
from tools.services import service  # noqa: E402
from tools.services.kafka import VERSION as OUR_KAFKA_VERSION  # noqa: E402

LABELS = {"postgres": "PostgreSQL", "kafka": "Kafka", "rabbitmq": "RabbitMQ", "rabbitmq4": "RabbitMQ 4"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: runs for minutes to hours; only with `make soak` (-m soak)")
    expression = config.option.markexpr
    if "soak" not in expression:
        config.option.markexpr = f"({expression}) and not soak" if expression else "not soak"


def pytest_report_header(config: pytest.Config) -> list[str]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return [f"relevo: {python}, {_describe_postgres()}, {_describe_kafka()}, {_describe_rabbitmq()}"]


@pytest.fixture(scope="session")
def postgres_url() -> str:
    return _url("postgres")


@pytest.fixture(scope="session")
def kafka_url() -> str:
    return _url("kafka")


@pytest.fixture(scope="session")
def rabbitmq_url() -> str:
    return _url("rabbitmq")


@pytest.fixture(params=["rabbitmq", "rabbitmq4"])
def each_rabbitmq_url(request: pytest.FixtureRequest) -> str:
    """RabbitMQ 3.10, and 4.0 where it runs: optional, so its absence skips even with RELEVO_REQUIRE_SERVICES."""
    if request.param == "rabbitmq4" and not service("rabbitmq4").running:
        pytest.skip("RabbitMQ 4 is not running (optional): python -m tools.services start rabbitmq4")
    return _url(request.param)


@pytest.fixture
def pg_database(postgres_url: str) -> Iterator[str]:
    """The URL of a database of the test's own, dropped afterwards even when connections were left open."""
    import psycopg

    name = f"relevo_{secrets.token_hex(8)}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"create database {name}")
    try:
        yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(f"drop database if exists {name} with (force)")


def _url(name: str) -> str:
    server = service(name)
    if not server.running:
        missing(f"{LABELS[name]} is not running: make services-up")
    return server.url


def _describe_postgres() -> str:
    server = service("postgres")
    if not server.running:
        return "no PostgreSQL"
    try:
        import psycopg

        with psycopg.connect(server.url, connect_timeout=5) as connection:
            version = connection.execute("show server_version").fetchone()
    except ImportError:
        return "PostgreSQL (psycopg is not installed)"
    except psycopg.OperationalError as error:
        return f"PostgreSQL does not answer ({str(error).splitlines()[0]})"
    return f"PostgreSQL {version[0].split()[0] if version else 'unknown'}"


def _describe_kafka() -> str:
    server = service("kafka")
    if not server.running:
        return "no Kafka"
    if server.given_url is not None:
        return f"Kafka at {urlsplit(server.given_url).hostname}"
    return f"Kafka {OUR_KAFKA_VERSION}"


def _describe_rabbitmq() -> str:
    found = [
        f"{LABELS[name]} at {urlsplit(service(name).url).port}"
        for name in ("rabbitmq", "rabbitmq4")
        if service(name).running
    ]
    return ", ".join(found) or "no RabbitMQ"
