"""What every command needs: the settings, logs, and where progress goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relevo.cli.output import line
from relevo.settings import Settings, load
from relevo.telemetry import logs


@dataclass(frozen=True, slots=True)
class CliContext:
    """The global options. ``click.pass_obj`` hands it to a command."""

    config: str | None
    debug: bool

    def settings(self, overrides: Mapping[str, Any] | None = None) -> Settings:
        """Load the settings and switch logging on; raises ``ConfigError``."""
        settings = load(self.config, overrides=overrides)
        logs.configure(settings.log, debug=self.debug)
        return settings


def progress(message: str) -> None:
    """One line for a person, on stderr: stdout belongs to what was asked for."""
    line(message, err=True)
