"""A commented ``relevo.toml`` with every setting and its default, made from ``relevo.settings``: it cannot drift."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from relevo.clients import dialect_of
from relevo.errors import ConfigError
from relevo.ops.settings_text import Setting, destination_settings, settings_tree
from relevo.settings import BrokerSettings, DatabaseSettings


def write_settings(
    path: Path, *, database_url: str | None = None, broker_url: str | None = None, force: bool = False
) -> None:
    """Write the file; raises ``ConfigError`` for a URL Relevo cannot read, and for a file that exists already."""
    if database_url is not None:
        dialect_of(database_url)
    text = settings_file(
        database_url=database_url or DatabaseSettings().url, broker_url=broker_url or BrokerSettings().url
    )
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def settings_file(*, database_url: str, broker_url: str) -> str:
    """The text. Defaults stand in comments, so that a later version may improve them; the two URLs do not."""
    given: dict[tuple[str, str], str] = {("database", "url"): database_url, ("broker", "url"): broker_url}
    lines = [
        "# Settings of Relevo. Each can also be set in the environment: [database] url is RELEVO_DATABASE_URL.",
        "# What is commented out shows the default, or an example where nothing is set by default. Keep passwords",
        "# out of this file: use the environment for them.",
    ]
    for section in settings_tree():
        lines += ["", *(f"# {line}" for line in textwrap.wrap(section.doc, 116) if section.name)]
        lines += [f"[{section.name}]"] if section.name else []
        for setting in section.settings:
            lines += _lines(setting, given.get((section.name, setting.name)))
    lines += [
        "",
        "# What one consumer is to do, whatever its code says; a table per consumer.",
        '# [consumers."billing"]',
    ]
    lines += ["# dead_letters = true"]
    lines += ["", "# What one topic wants; a table per topic.", '# [destinations."shop.order"]']
    lines += (f"# {setting.name} = {toml(setting.default)}" for setting in destination_settings())
    return "\n".join(lines) + "\n"


_EXAMPLES = {"text": '"..."', "number": "120.0"}
"""By the type of a setting that has no default."""


def _lines(setting: Setting, given: Any) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(setting.doc, 116))
    if given is not None:
        yield f"{setting.name} = {toml(given)}"
    elif setting.default is None:
        yield f"# {setting.name} = {_EXAMPLES[setting.type]}"
    else:
        yield f"# {setting.name} = {toml(setting.default)}"


def toml(value: Any) -> str:
    """A plain value as TOML, which for text, numbers and booleans is JSON."""
    return msgspec.json.encode(value).decode()
