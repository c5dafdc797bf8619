"""Nested dictionaries against a schema: defaults are filled in, and all that is wrong is said at once.

Rules, their order and the messages are those of cerberus, which the original used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Errors = dict[Any, list[Any]]
Check = Callable[[Any], list[str]]


@dataclass(frozen=True)
class Rule:
    """What a value has to be.

    Attributes:
        kind: what its type is called in messages; the types themselves, and those that do not count, in `types`.
        default: makes the value of a field that is left out.
        nullable: whether it may be None.
        inside: the fields of a dictionary.
        each: the rule of each element of a list.
        check: what else is wrong with it.
    """

    kind: str | None = None
    types: tuple[type, ...] = ()
    excluded: tuple[type, ...] = ()
    default: Callable[[], Any] | None = None
    required: bool = False
    nullable: bool = False
    minimum: int | None = None
    maximum: int | None = None
    shortest: int | None = None
    inside: Mapping[str, Rule] = field(default_factory=dict)
    each: Rule | None = None
    check: Check | None = None


def integer(default: int, minimum: int | None = None, maximum: int | None = None) -> Rule:
    return Rule("integer", (int,), default=lambda: default, minimum=minimum, maximum=maximum)


def boolean(default: bool) -> Rule:
    return Rule("boolean", (bool,), default=lambda: default)


def text(default: str) -> Rule:
    return Rule("string", (str,), default=lambda: default)


def elements(rule: Rule | None = None) -> Rule:
    return Rule("list", (Sequence,), (str,), list, each=rule)


def section(**fields: Rule) -> Rule:
    """A dictionary of these fields; one that is left out has the defaults of all of them."""
    return Rule("dict", (Mapping,), default=dict, inside=fields)


def mapping(rule: Rule) -> Rule:
    """A dictionary of any texts, whose values are all alike."""
    return Rule("dict", (Mapping,), default=dict, each=rule)


def instance(kind: str, cls: Callable[[], type]) -> Rule:
    """An object of a class, which is loaded when there is something to compare with it; or None."""

    def check(value: Any) -> list[str]:
        return [] if value is None or isinstance(value, cls()) else [f"must be of {kind} type"]

    return Rule(default=lambda: None, nullable=True, check=check)


def validated(document: Mapping[Any, Any], fields: Mapping[str, Rule]) -> tuple[dict[Any, Any], Errors]:
    """The document with all defaults, and what is wrong with it, by field in alphabetical order."""
    values = dict(document)
    for name, rule in fields.items():
        left_out = name not in values or (values[name] is None and not rule.nullable)
        if left_out and rule.default is not None:
            values[name] = rule.default()
    errors: Errors = {}
    for name in sorted({*values, *fields}, key=str):
        if name not in fields:
            errors[name] = ["unknown field"]
        elif name not in values:
            if fields[name].required:
                errors[name] = ["required field"]
        else:
            values[name], wrong = _checked(values[name], fields[name])
            if wrong:
                errors[name] = wrong
    return values, errors


def _checked(value: Any, rule: Rule) -> tuple[Any, list[Any]]:
    if value is None:
        return value, [] if rule.nullable else ["null value not allowed"]
    if rule.types and (not isinstance(value, rule.types) or isinstance(value, rule.excluded)):
        return value, [f"must be of {rule.kind} type"]
    wrong: list[Any] = [] if rule.check is None else list(rule.check(value))
    if rule.shortest is not None and len(value) < rule.shortest:
        wrong.append(f"min length is {rule.shortest}")
    if rule.minimum is not None and value < rule.minimum:
        wrong.append(f"min value is {rule.minimum}")
    if rule.maximum is not None and value > rule.maximum:
        wrong.append(f"max value is {rule.maximum}")
    inner: Errors = {}
    if rule.inside:
        value, inner = validated(value, rule.inside)
    elif rule.each is not None:
        value, inner = _checked_each(value, rule.each)
    if inner:
        wrong.append(inner)
    return value, wrong


def _checked_each(value: Any, rule: Rule) -> tuple[Any, Errors]:
    items = list(value.items() if isinstance(value, Mapping) else enumerate(value))
    checked = {key: _checked(item, rule) for key, item in items}
    found = {key: item for key, (item, _) in checked.items()}
    wrong = {key: errors for key, (_, errors) in checked.items() if errors}
    return (found if isinstance(value, Mapping) else list(found.values())), wrong
