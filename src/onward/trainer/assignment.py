"""Which value of the user belongs to which input of the model: by name, or by position."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from onward.errors import OnwardError, UnknownNameError, warn
from onward.graph.naming import quoted
from onward.trainer.column import from_pandas, is_arraylike, is_frame
from onward.trainer.field import Field

SAMPLE_WEIGHT = "sample_weight"
# What data sets call the target, whatever the loss calls it.
_TARGET_NAMES = ("labels", "label", "targets", "target", "y")


class Fields:
    """The inputs of a model: what it takes itself, the targets of the loss, and the weights of rows.

    Args:
        needs_targets: whether targets have to be given; otherwise those that are there are left out.
    """

    def __init__(self, fields: Sequence[Field], *, needs_targets: bool = True) -> None:
        self.inputs = [field for field in fields if not field.is_target]
        targets = [field for field in fields if field.is_target]
        self.targets = [field for field in targets if field.name != SAMPLE_WEIGHT]
        self.weight = next((field for field in targets if field.name == SAMPLE_WEIGHT), None)
        self.needs_targets = needs_targets

    @property
    def needed(self) -> list[Field]:
        return [*self.inputs, *(self.targets if self.needs_targets else [])]

    def all(self) -> list[Field]:
        return [*self.inputs, *self.targets, *([self.weight] if self.weight else [])]

    def describe(self) -> str:
        """What the model takes, for errors."""
        said = f"the model takes the inputs {quoted(field.name for field in self.inputs) or 'none'}"
        if self.targets:
            said += f" and the loss the targets {quoted(field.name for field in self.targets)}"
        return said


Named = dict[str, Any]  # values by the names of fields, and weights of rows as SAMPLE_WEIGHT


def by_name(
    values: Mapping[str, Any], fields: Fields, targets: Any = None, weight: Any = None, *, strict: bool = True
) -> Named:
    """Values of a mapping; `strict` refuses names that nothing takes.

    `targets` and `weight` may be given separately, or name what is theirs.
    """
    values = {str(name): value for name, value in values.items()}
    for field in fields.inputs:
        if field.name not in values:
            raise _missing(field, values, fields)
    named = {field.name: values[field.name] for field in fields.inputs}
    used = {*named, SAMPLE_WEIGHT}
    if targets is None:
        found = _target_names(values, fields)
        named.update({field: values[name] for field, name in found.items()})
        used.update(found.values())
    else:
        names = _names(targets)
        used.update(names)
        named.update(_targets(tuple(_named(name, values) for name in names) if names else targets, fields))
    if isinstance(weight, str):
        used.add(weight)
        weight = _named(weight, values)
    weight = values.get(SAMPLE_WEIGHT) if weight is None else weight
    if weight is not None:
        named[SAMPLE_WEIGHT] = weight
    unknown = [name for name in values if name not in used]
    if strict and unknown and fields.needs_targets:
        raise UnknownNameError(f"nothing takes {quoted(unknown)}: {fields.describe()}; leave it out")
    return _wanted(named, fields)


def by_position(items: Sequence[Any], fields: Fields) -> Named:
    """Values of a tuple: the inputs, then the targets, then weights of rows; or one part for each of these."""
    inputs, targets = len(fields.inputs), len(fields.targets)
    whole = inputs + targets
    parts = any(_is_part(item) for item in items[:2])
    if not parts and len(items) in {inputs, whole, whole + 1}:
        x, y = items[:inputs], items[inputs:whole]
        weight = items[whole] if len(items) > whole else None
        return from_parts(tuple(x), tuple(y) if y else None, weight, fields)
    if 1 <= len(items) <= 3 and (parts or inputs == 1):
        x, y, weight = (*items, None, None)[:3]
        return from_parts(x, y, weight, fields)
    raise OnwardError(
        f"{len(items)} values were given, but {fields.describe()}; give them in this order, as (inputs, targets), or "
        "by name as a dict"
    )


def from_parts(x: Any, y: Any, weight: Any, fields: Fields) -> Named:
    """Values of (inputs, targets, weights of rows), of which the first two may have several parts themselves."""
    if is_frame(x):
        return from_frame(x, fields, y, weight)
    if isinstance(x, Mapping):
        return by_name(x, fields, y, weight)
    named: Named = {}
    items = _several(x, len(fields.inputs))
    if y is not None and not fields.targets and len(items) < len(fields.inputs):
        # The targets of a model that is its own loss are inputs of it.
        items, y = [*items, *_several(y, len(fields.inputs) - len(items))], None
    if len(items) != len(fields.inputs):
        raise OnwardError(f"{len(items)} inputs were given, but {fields.describe()}")
    named.update({field.name: item for field, item in zip(fields.inputs, items, strict=True)})
    if y is not None:
        named.update(_targets(y, fields))
    elif fields.needs_targets and fields.targets:
        raise OnwardError(
            f"no targets were given, but {fields.describe()}; give data and targets, as fit(x, y) or fit((x, y))"
        )
    if weight is not None:
        named[SAMPLE_WEIGHT] = weight
    return _wanted(named, fields)


def from_frame(frame: Any, fields: Fields, targets: Any = None, weight: Any = None) -> Named:
    """Columns of a table of pandas.

    An input that has no column of its name takes all columns of numbers that are left, in their order, if there is one
    such input only.
    """
    columns = {str(name): frame[name] for name in frame.columns}
    if len(columns) < len(frame.columns):
        raise OnwardError("two columns of the table have the same name; rename one")
    absent = [field for field in fields.inputs if field.name not in columns]
    if len(absent) > 1 or (absent and absent[0].shape is not None and len(absent[0].shape) != 2):
        raise _missing(absent[0], columns, fields)
    if absent:
        (field,) = absent
        taken = {*(field.name for field in fields.inputs), SAMPLE_WEIGHT, *_names(targets), *_names(weight)}
        numeric = [name for name in columns if name not in taken and _is_numeric(columns[name])]
        others = [name for name in columns if name not in taken and not _is_numeric(columns[name])]
        if targets is None and (fields.needs_targets or len(numeric) != _width(field)):
            theirs = set(_target_names(columns, fields).values())
            numeric = [name for name in numeric if name not in theirs]
            others = [name for name in others if name not in theirs]
        _check_columns(field, numeric, others)
        original = {str(name): name for name in frame.columns}
        columns[field.name] = from_pandas(frame[[original[name] for name in numeric]])
    return by_name(columns, fields, targets, weight, strict=False)


def _check_columns(field: Field, numeric: Sequence[str], others: Sequence[str]) -> None:
    """See that the columns of a table that are left for an input are what it takes."""
    width = _width(field)
    if not numeric:
        raise OnwardError(f"{field} takes columns of numbers, but the table has {quoted(others) or 'none'} for it")
    if width is not None and width != len(numeric):
        raise OnwardError(
            f"{field} takes {width} numbers in each row, but the table has {len(numeric)} columns of numbers for it: "
            f"{quoted(numeric)}" + (f" (and others: {quoted(others)})" if others else "")
        )
    if others:
        warn(f"{field} takes the columns of numbers; {quoted(others)} are none and are left out")


def _width(field: Field) -> int | None:
    size = field.shape[1] if field.shape is not None else None
    return size if isinstance(size, int) else None


def _is_numeric(column: Any) -> bool:
    return getattr(column.dtype, "kind", "O") in "iufb"


def _targets(given: Any, fields: Fields) -> Named:
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in {field.name for field in fields.targets}]
        missing = [field for field in fields.targets if field.name not in given]
        if unknown or missing:
            raise UnknownNameError(f"targets are given as {quoted(map(str, given))}, but {fields.describe()}")
        return {str(name): value for name, value in given.items()}
    if is_frame(given):
        given = from_pandas(given)
    items = _several(given, len(fields.targets))
    if len(items) != len(fields.targets):
        if not fields.needs_targets:
            return {}
        raise OnwardError(f"{len(items)} targets were given, but {fields.describe()}")
    return {field.name: item for field, item in zip(fields.targets, items, strict=True)}


def _several(value: Any, count: int) -> Sequence[Any]:
    """The parts of a value: a tuple has several, a list of arrays too where several are expected."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, list) and count > 1 and len(value) == count:
        return value
    return [value]


def _is_part(item: Any) -> bool:
    """Whether an item of a tuple consists of several values, or of named ones."""
    return (
        isinstance(item, Mapping)
        or is_frame(item)
        or (isinstance(item, (tuple, list)) and any(is_arraylike(value) for value in item))
    )


def _names(value: Any) -> list[str]:
    """The names that are given in the place of values, if they are names."""
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, list) and value and all(isinstance(name, str) for name in value) else []


def _named(name: str, values: Mapping[str, Any]) -> Any:
    if name not in values:
        raise UnknownNameError(f"the data has no {name!r}; it has {quoted(values)}{_near(name, values)}")
    return values[name]


def _target_names(values: Mapping[str, Any], fields: Fields) -> dict[str, str]:
    """Under which name the data has each target; if there is only one, it may have one of the usual names."""
    found = {field.name: field.name for field in fields.targets if field.name in values}
    if not found and len(fields.targets) == 1:
        taken = {field.name for field in fields.inputs}
        usual = [name for name in _TARGET_NAMES if name in values and name not in taken]
        found = {field.name: usual[0] for field in fields.targets if usual}
    for field in fields.targets:
        if field.name not in found and fields.needs_targets:
            raise _missing(field, values, fields)
    return found


def _wanted(named: Named, fields: Fields) -> Named:
    """Without targets where nothing computes a loss."""
    if fields.needs_targets:
        return named
    targets = {field.name for field in fields.targets}
    return {name: value for name, value in named.items() if name not in targets}


def _missing(field: Field, values: Mapping[str, Any], fields: Fields) -> UnknownNameError:
    return UnknownNameError(
        f"{field} is missing: the data has {quoted(values) or 'nothing'}, but {fields.describe()}"
        f"{_near(field.name, values)}"
    )


def _near(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; is {near[0]!r} meant?" if near else ""
