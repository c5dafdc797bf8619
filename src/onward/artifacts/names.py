"""Names of values and parameters, as arguments give them."""

from __future__ import annotations

from typing import Any

from onward.errors import OnwardError
from onward.graph.naming import listed


def listed_once(argument: str, names: Any) -> list[str]:
    """A list of names, each once."""
    try:
        return [] if names is None else list(dict.fromkeys(listed(argument, names)))
    except OnwardError as error:
        raise OnwardError(f"Unknown type provided for {argument}: {error}") from None
