"""Command line: python -m tools.services VERB [NAME...]"""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main(sys.argv[1:]))
