"""Caches of keys and values, which language models of Hugging Face return: objects with tensors in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

_FILE = "transformers.cache_utils"


@dataclass
class _Open:
    """A cache, or a layer of one, as a container that pytree looks into, and makes a cache of again."""

    kind: type
    attributes: dict[str, Any]


def opened(returned: Any) -> Any:
    """The same with containers in place of caches."""
    return pytree.tree_map(_open, returned) if any(map(_is_cache, pytree.tree_leaves(returned))) else returned


def _is_cache(leaf: Any) -> bool:
    return any(kind.__module__ == _FILE for kind in type(leaf).__mro__)


def _open(leaf: Any) -> Any:
    if not _is_cache(leaf):
        return leaf
    return _Open(type(leaf), {name: opened(value) for name, value in vars(leaf).items()})


def _flatten(cache: _Open) -> tuple[list[Any], Any]:
    fixed = {name: value for name, value in cache.attributes.items() if isinstance(value, type)}
    names = tuple(name for name in cache.attributes if name not in fixed)
    return [cache.attributes[name] for name in names], (cache.kind, names, tuple(fixed.items()))


def _close(values: Iterable[Any], context: Any) -> Any:
    kind, names, fixed = context
    found = kind.__new__(kind)
    vars(found).update({**dict(zip(names, values, strict=True)), **dict(fixed)})
    return found


pytree.register_pytree_node(_Open, _flatten, _close)
