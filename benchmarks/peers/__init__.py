"""Other people's outbox relays, run beside Relevo: each with the fastest settings at which it loses nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path

from benchmarks.contestant import Unavailable, call, folder
from tools.pythons import find


def environment(name: str, requirements: Path, *pythons: str) -> Path:
    """The interpreter of a virtual environment with ``requirements`` (all versions pinned), built when it is not there.
    ``pythons``: versions that fit, best first. Raises ``Unavailable``."""
    home = folder("peers") / name
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    stamp, interpreter = home / ".done", home / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return interpreter
    python = next(filter(None, map(find, pythons)), None)
    if python is None:
        raise Unavailable(f"installing {name}: it needs Python {' or '.join(pythons)}, and there is none here")
    print(f"installing {name} into an environment of its own", flush=True)
    stamp.unlink(missing_ok=True)
    call([python, "-m", "venv", "--clear", home], f"making the environment of {name}")
    call([interpreter, "-m", "pip", "install", "--quiet", "-r", requirements], f"installing {name}")
    stamp.write_text(wanted)
    return interpreter
