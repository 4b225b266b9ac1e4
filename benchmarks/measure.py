"""What every benchmark needs: CPU and memory of processes, the machine in words, medians with their range."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass
class Processes:
    """CPU seconds and peak memory of some processes and their children; ended children stay counted."""

    pids: list[int]
    peak_rss_mb: float = 0.0
    _seconds: dict[int, float] = field(default_factory=dict)

    def sample(self) -> float:
        """CPU seconds so far."""
        rss = 0
        for pid in self.pids:
            try:
                root = psutil.Process(pid)
                family = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in family:
                try:
                    times = process.cpu_times()
                    self._seconds[process.pid] = times.user + times.system
                    rss += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
        self.peak_rss_mb = max(self.peak_rss_mb, rss / 1e6)
        return sum(self._seconds.values())


def machine() -> str:
    """Processor, cores, memory and Python, in one line."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    memory_gb = psutil.virtual_memory().total / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory_gb:.0f} GiB, Python {platform.python_version()}"


def spread(values: Sequence[float], digits: int = 0) -> str:
    """``median [smallest–largest]``."""
    middle = statistics.median(values)
    return f"{middle:,.{digits}f} [{min(values):,.{digits}f}–{max(values):,.{digits}f}]"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows as a Markdown table; the first is the heading."""
    lines = [list(row) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]

    def draw(line: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"

    return "\n".join(
        [draw(lines[0]), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(draw, lines[1:])]
    )
