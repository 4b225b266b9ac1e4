"""The table of results at the end of a test run."""

from __future__ import annotations

from typing import Any

NAME = "matrix"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for each row that ran, whichever process ran it."""
    rows: list[tuple[str, str, str, str]] = []
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            rows += [(*value, outcome) for name, value in getattr(report, "user_properties", ()) if name == NAME]
    if not rows:
        return
    terminalreporter.section("crash matrix")
    for case, result, seconds, outcome in sorted(set(map(tuple, rows))):
        terminalreporter.write_line(f"{outcome:8} {case:52} {seconds:>6}  {result}")
