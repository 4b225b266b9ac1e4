"""Real servers for the tests. Usage: python -m tools.services VERB [NAME...]

  up       start what is not running (default: all but the optional ones), print the URLs
  down     stop all
  status   one line per service
  env      print the URLs of what is running
  wipe     stop all and delete their data
  start, stop, restart, kill NAME...    one server down and up again; kill is SIGKILL
  run [NAME...] -- COMMAND...           up, run the command with the URLs in its environment, stop what it started

URLs are NAME=value lines on stdout, everything else goes to stderr. A service whose variable
(RELEVO_TEST_POSTGRES_URL, RELEVO_TEST_KAFKA_URL, RELEVO_TEST_RABBITMQ_URL) is already set is yours: it is used and
never touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from .base import Service
from .errors import ServiceError
from .registry import names, service
from .settings import beside, services_dir
from .shell import file_lock, say

ONE_BY_ONE: dict[str, Callable[[Service], object]] = {
    "start": Service.start,
    "stop": Service.stop,
    "restart": Service.restart,
    "kill": Service.kill,
}
ALL_AT_ONCE: dict[str, Callable[[Service], object]] = {"down": Service.stop, "wipe": Service.wipe}


def main(arguments: Sequence[str]) -> int:
    verb, rest = (arguments[0], list(arguments[1:])) if arguments else ("help", [])
    command: list[str] = []
    if verb == "run" and "--" in rest:
        rest, command = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    known = {"up", "status", "env", *ONE_BY_ONE, *ALL_AT_ONCE}
    if (verb not in known and not command) or (verb in ONE_BY_ONE and not rest):
        say(__doc__ or "")
        return 0 if verb in ("help", "-h", "--help") else 2
    try:
        chosen = [service(name) for name in rest or names(optional=verb not in ("up", "run"))]
    except ServiceError as error:
        say(f"error: {error}")
        return 2
    if verb == "status":
        for one in chosen:
            print(f"{one.name:10} {one.describe()}")
        return 0
    if verb == "env":
        _print_urls(chosen)
        return 0
    if verb == "run":
        return _run(chosen, command)
    if verb == "up":
        failed = _each(chosen, Service.start)
        for one in chosen:
            one.keep()
        _print_urls(chosen)
        return failed
    if verb in ONE_BY_ONE:
        return max(_each([one], ONE_BY_ONE[verb]) for one in chosen)
    return _each([one for one in chosen if one.given_url is None], ALL_AT_ONCE[verb])


def _each(chosen: Sequence[Service], action: Callable[[Service], object]) -> int:
    """The action on all of them at once; every failure is told; 1 when there was one."""
    failed = 0
    with ThreadPoolExecutor(max_workers=max(1, len(chosen))) as pool:
        for one, future in [(one, pool.submit(action, one)) for one in chosen]:
            try:
                future.result()
            except ServiceError as error:
                failed = 1
                say(f"error: {one.name}: {error}")
    return failed


def _urls(chosen: Sequence[Service]) -> dict[str, str]:
    return {one.url_variable: one.url for one in chosen if one.running}


def _print_urls(chosen: Sequence[Service]) -> None:
    for name, url in _urls(chosen).items():
        print(f"{name}={url}", flush=True)


def _run(chosen: Sequence[Service], command: Sequence[str]) -> int:
    """Several runs may share the servers: the last one to end stops those that no `up` asked for.

    Nothing is said at the end, so that the command's last line stays the last line.
    """
    in_use = services_dir() / ".in-use.lock"
    try:
        with file_lock(in_use, shared=True):
            failed = _each(chosen, Service.start_for_now)
            more: dict[str, str] = {}
            if beside():
                failed |= _each(chosen, lambda one: more.update(one.beside()))
            if failed and os.environ.get("RELEVO_REQUIRE_SERVICES") == "1":
                return 1
            return _wait_for(command, {**os.environ, **_urls(chosen), **more})
    finally:
        with file_lock(in_use, wait=False) as alone:
            if alone:
                _each([one for one in chosen if one.is_for_now], Service.stop)


def _wait_for(command: Sequence[str], env: dict[str, str]) -> int:
    try:
        child = subprocess.Popen(command, env=env)
    except OSError as error:
        say(f"error: {command[0]}: {error.strerror}")
        return 127
    # Ctrl-C reaches the command by itself; it decides, and the servers are stopped after it has ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _frame: child.send_signal(number))
    code = child.wait()
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
