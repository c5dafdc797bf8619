"""All scenarios of the Trainer: `SCENARIOS`, by name."""

from tests.distributed.scenarios import continuing, equal, failing, unlike  # noqa: F401
from tests.distributed.scenarios.registry import SCENARIOS, SHARDED

__all__ = ["SCENARIOS", "SHARDED"]
