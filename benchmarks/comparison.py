"""Write the newest results of `make bench` into README.md and docs/comparison.md: `make comparison`.

Results are those in benchmarks/results: the page of a day (`2026-11-16.md`) and those of other benchmarks beside it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DAY = r"\d{4}-\d\d-\d\d"
OURS, TORCH, ORIGINAL = "onward", "PyTorch eager", "onnxruntime-training 1.19.2"
# Of what a peer says instead of a time.
REASONS = {"wrong loss": "it computes a wrong loss", "refuses to build": "it refuses the model"}


@dataclass(frozen=True)
class Page:
    """One page of results: when and where they were measured, and its tables."""

    day: str
    said: str
    texts: list[str]  # of the tables

    @property
    def machine(self) -> str:
        """What stands before the first semicolon: processor, threads, versions."""
        return self.said.partition(";")[0]

    def rows(self, index: int) -> list[dict[str, str]]:
        """The rows of a table, by column."""
        head, _, *lines = (
            [cell.strip() for cell in line.strip("| ").split(" | ")] for line in self.texts[index].splitlines()
        )
        # Cells may be empty at the end of a row.
        return [dict(zip(head, [*cells, *[""] * len(head)], strict=False)) for cells in lines]


def newest(kind: str = "") -> Page | None:
    """The last page of a kind of results, or None where there is none."""
    paths = sorted(path for path in RESULTS.glob("*.md") if re.fullmatch(rf"{DAY}{kind}\.md", path.name))
    return read(paths[-1]) if paths else None


def read(path: Path) -> Page:
    blocks = path.read_text("utf-8").strip().split("\n\n")
    said = next(block for block in blocks if block[0] not in "#|")
    return Page(path.name[:10], " ".join(said.split()), [block for block in blocks if block.startswith("|")])


def milliseconds(cell: str) -> float | None:
    """The median of `1.03 (1.03 to 1.21)`; None where there is a reason instead."""
    found = re.match(r"([\d.]+) \(", cell)
    return float(found[1]) if found else None


def ratio(row: dict[str, str], peer: str) -> str:
    """Our time by that of a peer, or what is wrong with it."""
    ours, theirs = milliseconds(row[OURS]), milliseconds(row.get(peer, ""))
    if ours is not None and theirs is not None:
        return f"{ours / theirs:.2f}"
    return next((words for start, words in REASONS.items() if row.get(peer, "").startswith(start)), "")


def summary(page: Page) -> str:
    """What README.md has: ratios only."""
    rows: list[list[object]] = [
        [row["step, ms"], ratio(row, TORCH), ratio(row, ORIGINAL)] for row in page.rows(0) if row[OURS]
    ]
    return (
        "Time of one training step with AdamW by that of the other program (lower is better), measured side by side by "
        f"`make bench` on {page.machine}, {page.day}:\n\n"
        f"{table(['step', f'by {TORCH}', f'by {ORIGINAL}'], rows)}"
    )


def steps(page: Page) -> str:
    """What docs/comparison.md has: times, ratios and memory."""
    memory = {row["peak memory, MiB"]: row for row in page.rows(1)}
    rows: list[list[object]] = []
    for row in page.rows(0):
        used = memory[row["step, ms"]]
        times = [
            f"{found:.2f}" if (found := milliseconds(row.get(peer, ""))) else "" for peer in (OURS, TORCH, ORIGINAL)
        ]
        peaks = [used.get(f"by {peer}", "") for peer in (TORCH, ORIGINAL)]
        rows.append([row["step, ms"], *times, ratio(row, TORCH), ratio(row, ORIGINAL), *peaks])
    head = [
        "step",
        "ours, ms",
        "PyTorch",
        "original",
        "by PyTorch",
        "by the original",
        "memory by PyTorch",
        "by the original",
    ]
    return (
        f"One training step with AdamW, median of rounds by turns, on {page.machine}, {page.day}. Ratios are ours by "
        "theirs: lower is better. PyTorch is eager, the original onnxruntime-training 1.19.2; memory is the peak above "
        f"the loaded program.\n\n{table(head, rows)}"
    )


def whole(page: Page) -> str:
    """All tables of a page, as they are."""
    return "\n\n".join([f"{page.said} ({page.day})", *page.texts])


# Document -> (name of the block in it, kind of results, how they are written).
BLOCKS: dict[str, list[tuple[str, str, Callable[[Page], str]]]] = {
    "README.md": [("speed", "", summary)],
    "docs/comparison.md": [
        ("speed", "", steps),
        ("ORTModule", "-ortmodule", whole),
        ("estimators", "-estimators", whole),
    ],
}


def renewed(text: str, name: str, content: str) -> str:
    """The document with the block between its two marks written anew."""
    begin, end = f"<!-- begin {name}: written by make comparison -->", f"<!-- end {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"a document has to have {begin!r} and {end!r} once")
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if something would change")
    options, _ = parser.parse_known_args()  # `make bench` gives the options of all benchmarks to each
    old = []
    for name, blocks in BLOCKS.items():
        path = ROOT / name
        text = made = path.read_text("utf-8")
        for block, kind, write in blocks:
            page = newest(kind)
            made = renewed(made, block, write(page) if page else "Not measured yet.")
        if made != text:
            old.append(name)
            if not options.check:
                path.write_text(made, "utf-8")
    if options.check and old:
        sys.exit(f"not those of benchmarks/results: {', '.join(old)}; make comparison writes them")


if __name__ == "__main__":
    main()
