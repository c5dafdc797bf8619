"""What the programs made of documents call: commands as their readers type them, and the files that these are given."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def sh(code: str) -> None:
    """Run a block of shell; what it prints is shown where it fails."""
    subprocess.run(["sh", "-ec", code], check=True, stdout=sys.stderr)


def console(text: str) -> None:
    """Run the lines behind `$ ` and compare what they print with the lines below; `...` stands for anything."""
    for command, expected in re.findall(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        run = subprocess.run(["sh", "-ec", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        printed = "".join(f"{line.rstrip()}\n" for line in run.stdout.splitlines())
        assert run.returncode == 0, f"{command}: exit code {run.returncode}\n{printed}"
        pattern = re.escape(expected).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, printed, re.DOTALL), f"{command} prints\n{printed}\nand not\n{expected}"


def given(*names: str) -> None:
    """Write the files that a reader has and a document does not make."""
    subprocess.run([sys.executable, str(Path(__file__).with_name("given.py")), *names], check=True)
