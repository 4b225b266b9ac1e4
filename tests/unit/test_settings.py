"""Settings: one tree from three places, unknown names refused, passwords kept quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relevo.errors import ConfigError
from relevo.redacting import redact_text
from relevo.settings import Settings, load, redact


def write(folder: Path, text: str) -> Path:
    path = folder / "relevo.toml"
    path.write_text(text)
    return path


def test_file_then_environment_then_arguments(tmp_path: Path) -> None:
    """Each place wins over the one before; what nobody sets has its default; None is not set."""
    path = write(
        tmp_path, '[database]\nurl = "postgresql://file/"\nprefix = "f_"\n[relay]\nlease_s = 30\nbatch_max = 7\n'
    )
    environ = {"RELEVO_DATABASE_URL": "postgresql://env/", "RELEVO_RELAY_LEASE_S": "20.5", "RELEVO_SERVICE": "shop"}
    found = load(path, environ=environ, overrides={"relay.lease_s": 10.0, "service": None})
    assert found.database.url == "postgresql://env/"
    assert found.database.prefix == "f_"
    assert (found.relay.lease_s, found.relay.batch_max, found.relay.poll_max_s) == (10.0, 7, 0.5)
    assert found.source_uri == "urn:relevo:shop"


def test_free_tables(tmp_path: Path) -> None:
    """Options of the broker's client and topics of destinations have names of their own."""
    path = write(
        tmp_path,
        '[broker.options]\n"compression.type" = "lz4"\n[destinations."shop.order"]\non_rejected = "skip"\n',
    )
    found = load(path, environ={})
    assert found.broker.options == {"compression.type": "lz4"}
    assert found.destinations["shop.order"].on_rejected == "skip"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[databse]\n", "unknown setting 'databse'; did you mean 'database'?"),
        ("[relay]\nlease = 3\n", "unknown setting 'relay.lease'; did you mean 'relay.lease_s'?"),
        ('[destinations."a.b"]\non_reject = "park"\n', "did you mean 'destinations.\"a.b\".on_rejected'?"),
        ("[log]\nzzzzzz = 1\n", "known here: log.format, log.level"),
        ('[relay]\nbatch_max = "many"\n', "$.relay.batch_max"),
        ('[relay]\nsource = "tail"\n', "$.relay.source"),
        ("[relay\n", "relevo.toml"),
        ("[relay]\nlease_s = 4\n", "relay.send_timeout_s must be below relay.lease_s"),
        ("[relay]\nbatch_max = 0\n", "batch_max must be at least 1"),
        ("[relay]\npoll_min_s = 2\n", "poll_min_s"),
        ("[consumer]\nthreads = 0\n", "threads must be at least 1"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, tmp_path: Path) -> None:
    """The file, the setting, and the nearest known one."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path, environ={})
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_unknown_variable() -> None:
    """A misspelt environment variable is refused; those for tests and demos are not settings."""
    with pytest.raises(ConfigError, match="did you mean 'RELEVO_DATABASE_URL'"):
        load(environ={"RELEVO_DATABSE_URL": "x"})
    assert load(environ={"RELEVO_TEST_POSTGRES_URL": "x", "OTHER": "y"}) == Settings()


def test_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was asked for must be there; the default one need not."""
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml", environ={})
    with pytest.raises(ConfigError, match="no such file"):
        load(environ={"RELEVO_CONFIG": str(tmp_path / "none.toml")})
    monkeypatch.chdir(tmp_path)
    assert load(environ={}) == Settings()
    write(tmp_path, 'service = "found"\n')
    assert load(environ={}).service == "found"


@pytest.mark.parametrize(
    ("url", "quiet"),
    [
        ("postgresql://app:s3cret@db:5432/shop", "postgresql://app:***@db:5432/shop"),
        ("postgresql://app:s3:cr@et@db/shop", "postgresql://app:***@db/shop"),
        ("postgresql://app@db/shop", "postgresql://app@db/shop"),
        ("postgresql://db/shop?user=app&password=s3cret", "postgresql://db/shop?user=app&password=***"),
        ("kafka://u:s3cret@[::1]:9092", "kafka://u:***@[::1]:9092"),
        ("sqlite:///app.db", "sqlite:///app.db"),
        ("postgresql://app:s3cret@[bad/shop", "postgresql://app:***@[bad/shop"),
        *(
            (f"{scheme}://app:s3{sign}cret@h/d", f"{scheme}://***")
            for scheme in ("postgresql", "amqp")
            for sign in "#?/"
        ),
        ("postgresql://app:12/s3cret@db/shop", "postgresql://***"),
        ("postgresql://app:s3cret", "postgresql://***"),
        ("postgresql://app@db/shop?password=s3 cret@x", "postgresql://***"),
        ("postgresql://db/shop?sslpassword=s3cret&user=app", "postgresql://db/shop?sslpassword=***&user=app"),
        ("host=db password='s3 cret' user=app", "host=db password=*** user=app"),
        ("kafka://a:9092,[::1]:9093", "kafka://a:9092,[::1]:9093"),
        ("sqlite:///a@b:c.db", "sqlite:///a@b:c.db"),
    ],
)
def test_redaction(url: str, quiet: str) -> None:
    """No password in what is shown."""
    assert redact(url) == quiet


PASSWORDS = (
    "s3cret",
    "s3#cret",
    "s3?cret",
    "s3/cret",
    "s3@cret",
    "s3:cret",
    "s3 cret",
    "1/cret",
    "s3%23cret",
    "s3'cret",
)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "amqp", "amqps", "kafka", "https"])
def test_no_password_in_any_text(scheme: str, password: str) -> None:
    """A driver's error quotes the URL; whatever the password contains, no part of it is shown."""
    url = f"{scheme}://app:{password}@db:5432/shop"
    for text in (url, f"cannot connect to {url}: refused", f"'{url}' is wrong", f"{url}, {url}"):
        assert "cret" not in redact_text(text), redact_text(text)
    assert "cret" not in redact(url)
    assert "cret" not in repr(load(environ={}, overrides={"database.url": url, "broker.url": url}))


@pytest.mark.parametrize(
    "text",
    [
        "see https://example.com/a?b=c#d and http://[::1]:8080/x",
        "kafka://a:9092,b:9092 does not answer",
        "Key (id)=(5) already exists; key=42",
        "at 12:30 a@b.c wrote x://y",
    ],
)
def test_text_without_a_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_repr_keeps_quiet() -> None:
    """repr of settings goes into logs and tracebacks."""
    overrides: dict[str, Any] = {
        "database.url": "postgresql://a:s3cret@h/d",
        "broker.url": "kafka://a:s3cret@h",
        "broker.options": {"sasl.password": "s3cret"},
    }
    assert "s3cret" not in repr(load(environ={}, overrides=overrides))
