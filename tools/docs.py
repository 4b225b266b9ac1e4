"""Writes the reference pages that follow from the code: `python -m tools.docs`. A test holds them up to date."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import get_type_hints

import click
import msgspec

from relevo import errors
from relevo.cli.main import COMMANDS, EXIT_INTERRUPTED, cli
from relevo.errors import RelevoError
from relevo.ops import status_report
from relevo.ops.init import toml
from relevo.ops.settings_text import Setting, destination_settings, named_consumer_settings, settings_tree
from relevo.runtime.supervise import StoppedError
from tools import docs_classification, docs_code

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `python -m tools.docs` from the code; a test holds that it is up to date. -->\n"


def pages() -> dict[str, str]:
    """File name to text."""
    return {
        "cli.md": _cli(),
        "settings.md": _settings(),
        "exit-codes.md": _exit_codes(),
        "tables.md": _tables(),
        "status.md": _status(),
        "classification.md": _page("What an error means", docs_classification.page()),
        **docs_code.pages(),
    }


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"wrote {FOLDER / name}", file=sys.stderr)


def _page(title: str, *parts: str) -> str:
    return "\n".join([f"# {title}\n", NOTE, *parts]).rstrip() + "\n"


def _cli() -> str:
    parts = [
        "Progress and errors go to stderr, what was asked for goes to stdout. An error is one line; `--debug` or "
        "`RELEVO_DEBUG=1` adds the stack trace. Exit codes stand in [exit-codes.md](exit-codes.md), settings in "
        "[settings.md](settings.md), the fields of `relevo status --output json` in [status.md](status.md).\n",
        _help(cli, "relevo"),
    ]
    context = click.Context(cli, info_name="relevo")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        parts += [f"## relevo {name}\n", _help(command, f"relevo {name}")]
        for each, inner in _inner(command, context):
            parts += [f"### relevo {name} {each}\n", _help(inner, f"relevo {name} {each}")]
    return _page("Command line", *parts)


def _inner(command: click.Command, context: click.Context) -> list[tuple[str, click.Command]]:
    """The commands of a group, in its own order."""
    if not isinstance(command, click.Group):
        return []
    found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [(name, each) for name, each in found if each is not None]


def _help(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100, **cli.context_settings)
    return f"```text\n{command.get_help(context)}\n```\n"


def _settings() -> str:
    parts = [
        "From `relevo.toml` (or the file of `--config` or `RELEVO_CONFIG`), the environment, and arguments, each going "
        "before the one named earlier. `relevo init` writes a file with all of them. An unknown name is an error that "
        "names the nearest known one. Durations are in seconds.\n"
    ]
    for section in settings_tree():
        parts += [
            f"## {f'[{section.name}]' if section.name else 'Top level'}\n",
            f"{section.doc}\n" if section.doc else "",
        ]
        parts.append(_settings_table(section.settings))
    named = "What one consumer is to do, whatever its code says; what is not set is as its code says.\n"
    parts += ['## [consumers."NAME"]\n', named, _settings_table(named_consumer_settings())]
    parts += ['## [destinations."TOPIC"]\n', "What one topic wants.\n", _settings_table(destination_settings())]
    return _page("Settings", *[part for part in parts if part])


def _settings_table(settings: object) -> str:
    assert isinstance(settings, list)
    rows = ["| setting | type | default | environment | |", "|---|---|---|---|---|"]
    rows += [_setting_row(setting) for setting in settings]
    return "\n".join(rows) + "\n"


def _setting_row(setting: Setting) -> str:
    default = "none" if setting.default is None else f"`{toml(setting.default)}`"
    variable = f"`{setting.variable}`" if setting.variable else "none"
    return f"| `{setting.name}` | {setting.type} | {default} | {variable} | {setting.doc} |"


def _exit_codes() -> str:
    rows = [
        "| code | what | Python error |",
        "|---|---|---|",
        "| 0 | Done. A worker ends with it after the first signal, when everything in flight was finished. | |",
    ]
    found: dict[int, list[type[RelevoError]]] = {}
    for _, value in inspect.getmembers(errors, inspect.isclass):
        if issubclass(value, RelevoError):
            found.setdefault(value.exit_code, []).append(value)
    meaning = {
        1: "Failed; also a worker that did not finish what was in flight in time",
        3: "A check found a problem",
        69: "A dependency cannot be reached: database or broker",
        70: "A part of the process ended and cannot be started again. Look at the log, start the process again",
        75: "Try again",
        78: "The configuration, the tables or the rights are wrong; trying again does not help",
    }
    table = {code: (text, " ".join(f"`{each.__name__}`" for each in found[code])) for code, text in meaning.items()}
    table[2] = ("Wrong usage of the command line", "")
    table[EXIT_INTERRUPTED] = ("Interrupted from the keyboard", "")
    table[143] = ("A worker that left at the second signal: 128 + its number", f"`{StoppedError.__name__}`")
    assert set(found) <= set(table), "an error class has an exit code that is not explained here"
    rows += [f"| {code} | {text}. | {names} |" for code, (text, names) in sorted(table.items())]
    return _page("Exit codes", "\n".join(rows) + "\n")


def _status() -> str:
    about = inspect.cleandoc(status_report.__doc__ or "")
    parts = [f"A {about.partition(': a ')[2]}\n"]
    structs = [
        value
        for _, value in inspect.getmembers(status_report, inspect.isclass)
        if issubclass(value, msgspec.Struct) and value.__module__ == status_report.__name__
    ]
    for struct in sorted(structs, key=lambda each: (each is not status_report.Status, each.__name__)):
        rows = ["| field | type |", "|---|---|"]
        rows += [f"| `{name}` | {_type(hint)} |" for name, hint in get_type_hints(struct).items() if name[0] != "_"]
        parts += [f"## {struct.__name__}\n", inspect.cleandoc(struct.__doc__ or "") + "\n", "\n".join(rows) + "\n"]
    return _page("What `relevo status --output json` prints", *parts).replace("``", "`")


def _type(hint: object) -> str:
    name = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    name = name.replace(f"{status_report.__name__}.", "").replace(" | None", " or null")
    name = {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}.get(name, name)
    name = name.replace("int or", "integer or").replace("float or", "number or").replace("list[str]", "list[text]")
    name = re.sub(r"list\[(\w+)\]", r"list of \1", name)
    return re.sub(r"\b[A-Z]\w+", lambda match: f"[{match[0]}](#{match[0].lower()})", name)


_TABLE = re.compile(r"((?:^--[^\n]*\n)*)^create table \{(\w+)\} \(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r"^  (\w+) (.+?),?(?:\s+-- (.*))?$")


def _tables() -> str:
    sqlite = {name: dict(_columns(body)) for _, name, body in _migrated("sqlite")}
    parts = [
        "Relevo owns these tables and their migrations. You may read all of them; write through the library, "
        "`relevo_add` or the columns of the outbox that a `writer` is granted. Names begin with `database.prefix`. On "
        "SQLite times are integer milliseconds since 1970 UTC, ids are text.\n"
    ]
    for comment, name, body in _migrated("postgres"):
        if name.endswith("_p0"):
            continue
        about = " ".join(line.removeprefix("--").strip() for line in comment.splitlines())
        rows = ["| column | PostgreSQL | SQLite | |", "|---|---|---|---|"]
        for column, (kind, remark) in _columns(body):
            other = sqlite.get(name, {}).get(column, ("none", ""))
            rows.append(f"| `{column}` | {_cell(kind)} | {_cell(other[0])} | {remark or other[1]} |")
        parts += [f"## relevo_{name}\n", f"{about}\n" if about else "", "\n".join(rows) + "\n"]
    return _page("Tables", *[part for part in parts if part])


def _migrated(folder: str) -> Iterator[tuple[str, str, str]]:
    files = resources.files("relevo.storage") / folder / "migrations"
    for file in sorted(files.iterdir(), key=lambda each: each.name):
        if file.name[0].isdigit():
            yield from _TABLE.findall(file.read_text("utf-8"))


def _columns(body: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for line in body.splitlines():
        match = _COLUMN.match(line)
        if match and not line.startswith(("  primary key (", "  unique (", "  check (")):
            yield match[1], (match[2], match[3] or "")


def _cell(kind: str) -> str:
    kind = kind.replace("(cast((julianday('now') - 2440587.5) * 86400000 as integer))", "now")
    return kind if kind == "none" else f"`{kind}`".replace("|", "\\|")


if __name__ == "__main__":
    main()
