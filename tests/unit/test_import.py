"""`import relevo` is small and quiet."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import relevo

CLIENTS = {"psycopg", "asyncpg", "sqlalchemy", "confluent_kafka", "aiosqlite", "pydantic", "attrs", "click", "rich"}
TOOLS = CLIENTS | {"pytest", "opentelemetry", "asyncio"}


def python(code: str) -> str:
    """Run ``code`` in an interpreter of its own and return what it printed."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout


def modules_after(statement: str) -> set[str]:
    code = f"import json, sys; before = set(sys.modules)\n{statement}\n"
    return set(json.loads(python(code + "print(json.dumps(sorted(set(sys.modules) - before)))")))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_import_loads_no_client() -> None:
    """Nothing beyond the standard library, and not even asyncio."""
    loaded = modules_after("import relevo")
    assert packages(loaded) <= {*sys.stdlib_module_names, "relevo"}
    assert not packages(loaded) & TOOLS


@pytest.mark.parametrize("statement", ["from relevo import Outbox; Outbox()", "from relevo.testing import captured"])
def test_the_write_side_loads_no_client(statement: str) -> None:
    """An outbox at module level costs no driver."""
    assert not packages(modules_after(statement)) & CLIENTS


def test_the_pytest_plugin_is_light() -> None:
    """It is loaded in every project that has Relevo installed: nothing of the outbox comes with it."""
    loaded = modules_after("import pytest; import relevo.testing.plugin")
    assert "relevo.outbox" not in loaded
    assert not packages(loaded) & CLIENTS


def test_import_is_small() -> None:
    """What makes it quick: a few dozen small modules, none of them a heavy one.
    Time itself is not tested: the machines are shared."""
    loaded = modules_after("import relevo")
    assert len(loaded) <= 60
    assert not packages(loaded) & {"json", "logging", "http", "email", "ssl", "subprocess", "concurrent", "msgspec"}


def test_event_is_the_function_whatever_is_imported_before() -> None:
    """`relevo.event` is a module as well; the package's name stays the function."""
    for first in ("import relevo.event", "import relevo.outbox", "from relevo import Outbox; Outbox", "import relevo"):
        code = f"{first}\nimport relevo.event\nfrom relevo import event\nprint(type(event).__name__)"
        assert python(code).strip() == "function"


def test_unknown_name() -> None:
    """An AttributeError that names the module, as for any module."""
    with pytest.raises(AttributeError, match=r"module 'relevo' has no attribute 'Outbocks'"):
        relevo.Outbocks  # noqa: B018


def test_public_names_are_there() -> None:
    """Everything that `dir(relevo)` promises can be had."""
    for name in relevo.__all__:
        assert name in dir(relevo)
        assert getattr(relevo, name) is not None
