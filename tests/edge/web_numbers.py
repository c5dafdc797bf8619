"""Numbers that web/test compares onward-web with: `python -m tests.edge.web_numbers` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from onward.optim import schedules

FILE = Path(__file__).parents[2] / "web" / "test" / "numbers.json"
STEPS = (0, 1, 2, 3, 5, 8, 9, 10, 11, 15, 19, 20, 21, 40, 100)
SCHEDULES = (
    schedules.Constant(0.1),
    schedules.Constant(0.1, 4.5),
    schedules.Linear(0.1, 3, 20),
    schedules.Linear(0.1, 2.5, 20),
    schedules.LinearFactor(0.1),
    schedules.LinearFactor(0.1, 12, 0.2, 2.0),
    schedules.Cosine(0.1, 20),
    schedules.Cosine(0.1, 20, 3.5, 0.01, 1.5),
    schedules.CosineRestarts(0.1, 6),
    schedules.CosineRestarts(0.1, 3, 2, 0.01, 2),
    schedules.Polynomial(0.1, 20),
    schedules.Polynomial(0.1, 20, 2.5, 4, 0.001),
    schedules.Step(0.1, 4),
    schedules.MultiStep(0.1, (15, 5), 0.3),
    schedules.Exponential(0.1, 0.93),
    schedules.OneCycle(0.1, 20),
    schedules.OneCycle(0.1, 20, 0.4, "linear", 10.0, 100.0, True),
    schedules.Warmup(schedules.Exponential(0.1, 0.9), 4),
    schedules.ReduceOnPlateau(0.1),
)
ORDERS = ((0, 0, 10), (7, 3, 12), (2**40, 1, 9), (-5, 70, 11), (3, 2, 1), (1, 1, 1000))


def numbers() -> dict[str, Any]:
    """Rates of all schedules, and orders of rows."""
    return {
        "steps": list(STEPS),
        "schedules": [{"schedule": x.describe(), "rates": [x(step) for step in STEPS]} for x in SCHEDULES],
        "orders": [
            {
                "seed": seed,
                "epoch": epoch,
                "order": np.random.default_rng([seed % 2**64, epoch]).permutation(n).tolist(),
            }
            for seed, epoch, n in ORDERS
        ],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(numbers()) + "\n")
