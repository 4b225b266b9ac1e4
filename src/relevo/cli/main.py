"""The command line: parses, calls ``relevo.ops`` and prints. Commands are imported when they are called."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback

import click

from relevo._version import __version__
from relevo.cli.context import CliContext
from relevo.cli.lazy import LazyGroup
from relevo.cli.output import echo, line, show_error
from relevo.errors import RelevoError
from relevo.telemetry import logs

COMMANDS = {
    "init": ("relevo.cli.init", "Write a relevo.toml with every setting and its default."),
    "migrate": ("relevo.cli.migrate", "Create or upgrade Relevo's tables, print the SQL, or grant rights."),
    "relay": ("relevo.cli.relay", "Move messages from the outbox to the broker. Run as many as you like."),
    "consume": ("relevo.cli.consume", "Run consumers: relevo consume shop.consumers:billing"),
    "effects": ("relevo.cli.effects", "Perform outward acts, list them, settle those of unknown outcome."),
    "replay": ("relevo.cli.replay", "Process a time window, a range or a key again, for one consumer."),
    "status": ("relevo.cli.status", "What is pending, who works, what is paused or held."),
    "parked": ("relevo.cli.parked", "Held keys: list, show, redrive, skip, discard, edit."),
    "jobs": ("relevo.cli.jobs", "Long acts of operators: list them, end one for good."),
    "source": ("relevo.cli.source", "How the outbox is read: move between 'mark', 'log' and 'wal'."),
    "groups": ("relevo.cli.groups", "Consumers that read the outbox without a broker: list groups, drop one."),
    "slot": ("relevo.cli.slot", "The replication slot of the source 'wal': create, check, recover, drop."),
    "pause": ("relevo.cli.pause", "Stop a destination, topic, consumer, lane or key, and say why."),
    "resume": ("relevo.cli.resume", "Let it go on."),
    "purge": ("relevo.cli.purge", "Delete or archive what is old, in small batches."),
    "bench": ("relevo.cli.bench", "Measure your own database and broker: append, drain, latency."),
    "demo": ("relevo.cli.demo", "Lose nothing while the relay is killed, on this machine."),
}

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@click.group(cls=LazyGroup, commands_by_name=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", metavar="PATH", help="Settings file; relevo.toml in the working directory if not given.")
@click.option("--debug", is_flag=True, help="Log everything, and show the stack trace of an error.")
@click.version_option(__version__, prog_name="relevo")
@click.pass_context
def cli(context: click.Context, config: str | None, debug: bool) -> None:
    """Hands over what a service decided, without dropping it, doubling its effect or swapping its order."""
    context.obj = CliContext(config=config, debug=debug or debug_wanted())


def main(arguments: list[str] | None = None) -> None:
    """The entry point ``relevo``; ends the process with the exit code of the outcome."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code. Every error is one line on stderr; a stack trace only if asked for."""
    try:
        result = cli.main(arguments, prog_name="relevo", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:  # bad usage: exit code 2
        show_error(error)
        return error.exit_code
    except RelevoError as error:
        return _fail(str(error), error.exit_code, arguments)
    except (KeyboardInterrupt, click.Abort):
        if not (logs.is_json() and logs.works()):
            echo(err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `relevo status | head`: nobody reads on, and that is fine
        _drop_output()
        return EXIT_FAILED
    except Exception as error:  # noqa: BLE001  the last resort, for errors that nobody expected
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            _drop_output()
            where = f" ({error.filename})" if error.filename else ""
            told = (
                f"{error.strerror}: output or a file cannot be written{where}. What the command did before stays done"
            )
            return _fail(told, EXIT_FAILED, arguments)
        name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        first_line = str(error).partition("\n")[0]
        return _fail(f"unexpected {name}: {first_line}. Run again with --debug to see where", EXIT_FAILED, arguments)


def _drop_output() -> None:
    """What is buffered would be written at the exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def debug_wanted() -> bool:
    """Whether ``RELEVO_DEBUG`` asks for stack traces."""
    return os.environ.get("RELEVO_DEBUG", "") not in ("", "0")


def _fail(message: str, exit_code: int, arguments: list[str]) -> int:
    text = " ".join(message.split())
    if logs.is_json() and logs.works():
        logs.say(logging.ERROR, text, exit_code=exit_code)
        return exit_code
    if debug_wanted() or "--debug" in arguments:
        echo(traceback.format_exc(), err=True)
    line(f"relevo: {text}", err=True)
    return exit_code
