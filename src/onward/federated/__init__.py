"""Federated learning on Flower: clients train on their own rows, a server averages what they learned.

`client_app` and `server_app` make Flower's ClientApp and ServerApp of a function that makes a `Trainer`; `simulate`
runs both in this process.
"""

from __future__ import annotations

import warnings

try:
    with warnings.catch_warnings():
        # Flower imports its command line, whose typer uses names that click is about to drop.
        warnings.filterwarnings("ignore", "'click", DeprecationWarning)
        import flwr.serverapp.strategy  # noqa: F401
except ImportError as error:
    raise ImportError("onward.federated needs Flower 1.22 or newer: pip install 'onward[federated]'") from error

from onward.federated.client import client_app
from onward.federated.server import server_app
from onward.federated.simulation import simulate

__all__ = ["client_app", "server_app", "simulate"]
