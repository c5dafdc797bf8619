"""Labels as the numbers of classes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.cli.data.table import Column, Kind
from onward.cli.files import near
from onward.errors import OnwardError
from onward.graph.naming import quoted

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Classes:
    """The names of classes, in the order of the scores."""

    names: list[str | int]

    @classmethod
    def of(
        cls,
        label: Column,
        count: int | None,
        given: Sequence[str | int] | None,
        known: Sequence[str | int] | None,
        notes: list[str],
    ) -> Classes:
        """The classes of a label, for a model with `count` scores.

        They are those that were `given`; those that the model knows, if it knows all that the label has; or those of
        the label in the order of the alphabet. Whole numbers that number the scores already stay what they are.
        """
        present = _present(label)
        if given is not None:
            names = _like(list(given), label)
            unknown = [name for name in present if name not in names]
            if unknown:
                raise OnwardError(
                    f"label {label.name!r} has {quoted(map(str, unknown))}, but the classes are "
                    f"{quoted(map(str, names))}; --classes says which others there are"
                )
            if count is not None and len(names) > count:
                raise OnwardError(
                    f"there are {len(names)} classes ({_few(names)}), but the model has {count} outputs; --new-head "
                    f"{len(names)} gives it a new last layer"
                )
            return cls(names)
        if known is not None:
            names = _like(list(known), label)
            if all(name in names for name in present):
                return cls(names)
            notes.append(f"the classes of the model ({_few(names)}) are others than those of the data")
        if count is not None and len(present) > count:
            raise OnwardError(
                f"label {label.name!r} has {len(present)} classes ({_few(present)}), but the model has {count} "
                f"{'output' if count == 1 else 'outputs'}; --new-head {len(present)} gives it a new last layer"
            )
        if label.kind is Kind.NUMBER and _number_scores(present, count):
            return cls(list(range(count if count is not None else int(max(present)) + 1)))
        notes.append(f"classes: {_numbered(present)} (--classes gives another order)")
        if count is not None and len(present) < count:
            notes.append(
                f"the model has {count} outputs, of which {len(present)} are used; --new-head {len(present)} gives it "
                "as many as there are classes"
            )
        return cls(present)

    def numbers(self, label: Column) -> Array:
        """The number of the class of each row."""
        if label.kind is Kind.NUMBER and self.names == list(range(len(self.names))):
            values = label.values
            wrong = values[(values < 0) | (values >= len(self.names))]
            if wrong.size:
                raise OnwardError(
                    f"label {label.name!r} has {wrong[0]!s}, but the classes are 0 to {len(self.names) - 1}; is "
                    "--new-head needed, or are these no classes (--loss mse)?"
                )
            return values.astype(np.int64)
        places = {name: index for index, name in enumerate(_like(self.names, label))}
        values = label.values.astype(np.int64) if label.kind is Kind.NUMBER else label.values
        unknown = next((value for value in values.tolist() if value not in places), None)
        if unknown is not None:
            raise OnwardError(
                f"label {label.name!r} has {unknown!r}, which is none of the classes {_few(list(places))}"
                f"{near(str(unknown), map(str, places))}"
            )
        return np.array([places[value] for value in values.tolist()], np.int64)


def _present(label: Column) -> list[str | int]:
    if label.kind is Kind.NUMBER:
        if not label.is_integer:
            raise OnwardError(
                f"label {label.name!r} has fractions ({label.range}), but the loss takes classes; --loss mse "
                "takes numbers"
            )
        return [int(value) for value in np.unique(label.values[~label.missing])]
    texts = {str(value) for value in label.values if value is not None}
    return [*sorted(texts, key=_natural)]


def _natural(text: str) -> tuple[int, float, str]:
    """Texts that are numbers come by their size, before the others."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def _like(names: Sequence[str | int], label: Column) -> list[Any]:
    """Names in the type of a label: files hold 1 where models say "1"."""
    if label.kind is Kind.NUMBER:
        return [int(name) if str(name).lstrip("-").isdigit() else name for name in names]
    return [str(name) for name in names]


def _number_scores(present: Sequence[str | int], count: int | None) -> bool:
    numbers = [value for value in present if isinstance(value, int)]
    return len(numbers) == len(present) and min(numbers) >= 0 and (count is None or max(numbers) < count)


def _few(names: Sequence[str | int]) -> str:
    shown = ", ".join(str(name) for name in names[:10])
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _numbered(names: Sequence[str | int]) -> str:
    shown = ", ".join(f"{index} {name}" for index, name in enumerate(names[:10]))
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")
