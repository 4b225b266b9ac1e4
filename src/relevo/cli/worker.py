"""What ``relay``, ``consume`` and ``effects run`` share: how they log, and how they say that they are ready."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import click

from relevo.cli.context import CliContext, progress
from relevo.settings import Settings
from relevo.telemetry import logs

F = TypeVar("F", bound=Callable[..., Any])

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


def log_options(function: F) -> F:
    """``--log-level`` and ``--log-format``, as arguments of the same names."""
    for option in (
        click.option(
            "--log-format", type=click.Choice(FORMATS), help="Log lines for people or for programs; log.format."
        ),
        click.option(
            "--log-level",
            type=click.Choice(LEVELS, case_sensitive=False),
            help="Of Relevo's loggers and of the application's; log.level.",
        ),
    ):
        function = option(function)
    return function


def settings_of(context: CliContext, log_level: str | None, log_format: str | None) -> Settings:
    """The settings, with logging switched on for a process that works until it is stopped. Raises ``ConfigError``."""
    settings = context.settings({"log.level": log_level, "log.format": log_format})
    logs.every_line()
    return settings


def announce(message: str) -> None:
    """That the process is ready, on stderr: a line for people, or one JSON object where the log is JSON."""
    if logs.is_json():
        logs.say(logging.INFO, message)
    else:
        progress(message)
