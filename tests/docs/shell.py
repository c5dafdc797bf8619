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
    """Run the lines behind `$ ` and compare what they print with the lines below.

    `...` stands for anything, and several spaces for any number: columns are as wide as their numbers.
    """
    for command, expected in re.findall(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        run = subprocess.run(["sh", "-ec", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        printed = "".join(f"{line.rstrip()}\n" for line in run.stdout.splitlines())
        assert run.returncode == 0, f"{command}: exit code {run.returncode}\n{printed}"
        pattern = re.escape(re.sub(" +", " ", expected)).replace(re.escape("..."), ".*")
        matches = re.fullmatch(pattern, re.sub(" +", " ", printed), re.DOTALL)
        assert matches, f"{command} prints\n{printed}\nand not\n{expected}"


def given(*names: str) -> None:
    """Write the files that a reader has and a document does not make."""
    subprocess.run([sys.executable, str(Path(__file__).with_name("given.py")), *names], check=True)
