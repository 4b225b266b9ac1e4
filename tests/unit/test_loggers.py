"""The application's logging may raise anything: Relevo goes on."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from relevo import loggers
from relevo.telemetry.often import Often

SOURCE = Path(loggers.__file__).parent
KINDS = [RuntimeError, RecursionError, SystemExit, GeneratorExit, KeyboardInterrupt]


def test_every_logger_of_the_package_is_guarded() -> None:
    names = set()
    for file in SOURCE.rglob("*.py"):
        found = re.findall(r'getLogger\(\s*"(relevo[^"]*)"', file.read_text(encoding="utf-8"))
        names |= set(found)
        package = SOURCE / file.relative_to(SOURCE).parts[0] / "__init__.py"
        assert not found or "guard()" in package.read_text(encoding="utf-8"), f"{package} does not call guard()"
    assert names == set(loggers.NAMES)
    assert all({"handle", "makeRecord"} <= set(vars(logging.getLogger(name))) for name in names)


class Broken(logging.Handler, logging.Filter):
    """A handler or filter that raises."""

    def __init__(self, kind: type[BaseException]) -> None:
        logging.Handler.__init__(self)
        self.kind = kind
        self.calls = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.fail()

    def fail(self, *_: object, **__: object) -> None:
        self.calls += 1
        raise self.kind("the application's logging is broken")


@contextmanager
def handler(broken: Broken) -> Iterator[None]:
    logger = logging.getLogger("relevo")
    logger.addHandler(broken)
    yield
    logger.removeHandler(broken)


@contextmanager
def log_filter(broken: Broken) -> Iterator[None]:
    logger = logging.getLogger("relevo.consumer")
    logger.addFilter(broken.fail)  # type: ignore[arg-type]
    yield
    logger.removeFilter(broken.fail)  # type: ignore[arg-type]


@contextmanager
def factory(broken: Broken) -> Iterator[None]:
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(broken.fail)
    yield
    logging.setLogRecordFactory(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [handler, log_filter, factory])
def test_what_the_applications_logging_raises_ends_there(
    place: Callable[[Broken], contextmanager[None]], kind: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Broken(kind)
    logger = logging.getLogger("relevo.consumer")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(loggers, "_is_ctrl_c", lambda: False)
        stack.enter_context(place(broken))  # type: ignore[arg-type]
        logger.error("a line of %s", "its own")
        Often(logger).log(logging.ERROR, "group", "lines", "a line that may come often", error=ValueError("x"))
    assert broken.calls >= 2
    assert (
        f"relevo.consumer was not written: the application's logging raised {kind.__name__}" in capsys.readouterr().err
    )


def test_a_line_names_the_place_it_comes_from() -> None:
    code = (
        "import logging, relevo.relay; logging.basicConfig(format='%(filename)s %(message)s')\n"
        "logging.getLogger('relevo.relay').error('hello')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stderr == "<string> hello\n"
