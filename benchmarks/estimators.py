"""`fit` of OnnxClassifier against scikit-learn's MLPClassifier: `python -m benchmarks.estimators`.

Digits as 28 by 28 pixels, one hidden layer of 500, batches of 200, from the same weights in the same order. Losses are
compared first; then fits alternate. What is printed is the median time of a fit of each and the median of the ratios of
neighbours; and the first fit of a process, in which graphs are built.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from benchmarks.report import processor, table
from onward.sklearn import OnnxClassifier

ROOT = Path(__file__).parent.parent
SETTINGS: dict[str, Any] = {
    "hidden_layer_sizes": (500,),
    "batch_size": 200,
    "random_state": 0,
    "tol": 0.0,
    "n_iter_no_change": 1000,
}
CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "adam, float32": (np.float32, {}),
    "adam, float64": (np.float64, {}),
    "sgd with Nesterov's momentum, float32": (np.float32, {"solver": "sgd", "learning_rate_init": 0.05}),
    "sgd with Nesterov's momentum, float64": (np.float64, {"solver": "sgd", "learning_rate_init": 0.05}),
}
LOSS_TOLERANCE = 1e-4
PAUSE = 0.1  # seconds, for the threads of the peer before to stop spinning


def digits(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Images of 8 by 8 pixels, three times as large, with a border."""
    pixels, labels = load_digits(return_X_y=True)
    larger = np.kron(pixels.reshape(-1, 8, 8) / 16, np.ones((3, 3)))
    return np.pad(larger, ((0, 0), (2, 2), (2, 2))).reshape(len(pixels), 784).astype(dtype), labels


def fit(kind: Any, data: tuple[np.ndarray, np.ndarray], epochs: int, **options: Any) -> tuple[Any, float]:
    estimator = kind(**SETTINGS, **options, max_iter=epochs)
    time.sleep(PAUSE)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it does not converge in so few epochs
        estimator.fit(*data)
    return estimator, time.perf_counter() - start


def measure(name: str, rounds: int, epochs: int) -> list[object]:
    dtype, options = CASES[name]
    data = digits(dtype)
    curves = [np.array(fit(kind, data, 3, **options)[0].loss_curve_) for kind in (MLPClassifier, OnnxClassifier)]
    worst = float(np.max(np.abs(curves[1] / curves[0] - 1)))
    if not worst < LOSS_TOLERANCE:
        raise SystemExit(f"{name}: wrong loss, {curves[1]} instead of {curves[0]}")
    theirs, ours = [], []
    for _ in range(rounds):
        theirs.append(fit(MLPClassifier, data, epochs, **options)[1])
        ours.append(fit(OnnxClassifier, data, epochs, **options)[1])
    ratio = statistics.median(b / a for a, b in zip(theirs, ours, strict=True))
    first = [_first(name, kind, epochs) for kind in ("MLPClassifier", "OnnxClassifier")]
    times = [f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" for values in (theirs, ours)]
    return [name, *times, f"{ratio:.2f}", *(f"{seconds:.2f}" for seconds in first), f"{first[1] / first[0]:.2f}"]


def _first(name: str, kind: str, epochs: int) -> float:
    """The seconds of the first fit of a process."""
    program = (
        f"from benchmarks.estimators import *\ndtype, options = CASES[{name!r}]\n"
        f"print(fit({kind}, digits(dtype), {epochs}, **options)[1])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return float(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few and short rounds, to see that it works")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options, _ = parser.parse_known_args()  # `make bench` gives the options of all benchmarks to each
    if options.quick:
        options.rounds, options.epochs = 2, 2
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    rows = [measure(name, options.rounds, options.epochs) for name in CASES]
    day = datetime.date.today().isoformat()
    header = ["fit, s", "MLPClassifier", "OnnxClassifier", "ratio", "first fit", "of ours", "ratio"]
    page = (
        f"# Estimators, {day}\n\n{processor()}, {options.threads} threads; load of the machine over the last minute "
        f"{os.getloadavg()[0]:.1f}. Digits as 28 by 28 pixels, 784-500-10, batches of 200, {options.epochs} epochs: "
        "median (least to most) of fits by turns, and the first fit of a process. Ratios are our time by "
        f"scikit-learn's: lower is better.\n\n{table(header, rows)}\n"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{day}-estimators.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
