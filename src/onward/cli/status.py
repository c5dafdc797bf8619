"""Exit codes. They are documented in docs/command-line.md."""

from __future__ import annotations

OK = 0
NO = 1  # the command worked, and the answer is no: a model cannot be trained, a gradient disagrees
WRONG = 2  # what was asked for cannot be done; one line says why and what to do
MISSING = 3  # a package is not installed
INTERRUPTED = 130  # Ctrl-C, as shells have it
