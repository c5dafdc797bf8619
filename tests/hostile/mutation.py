"""Damage files, with a seed: bytes of any kind, and the values inside protobuf messages, JSON and flatbuffers."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message

Mutator = Callable[[random.Random, bytes], bytes]

INTEGERS = [
    0, 1, 2, 3, 7, -1, -2, -100, 64, 65, 1000, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63),
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-38, 1e38, 0.5, 1.5, 3.9999, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", " ", "x", "\0", "../secret", "/etc/hostname", "é" * 40, "a" * 3000, "%s", "{}", "ai.onnx", "com.microsoft"]
OPERATORS = (
    "Add Cast Concat Constant ConstantOfShape Conv ConvTranspose Dropout Einsum Expand Flatten Gather Gemm Identity If "
    "LSTM Loop MatMul MaxPool Pad QuantizeLinear Range Reshape Resize Scan SequenceAt Shape Slice Split Squeeze Tile "
    "TopK Transpose Unsqueeze Where Nonsense"
).split()


# Bytes of any kind ---------------------------------------------------------------------------------------------------


def mutate_bytes(rng: random.Random, content: bytes) -> bytes:
    """Flip, overwrite, cut, repeat and move bytes."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        if not data:
            return bytes(data)
        at, length = rng.randrange(len(data)), rng.choice([1, 1, 2, 4, 8, 64])
        kind = rng.randrange(7)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length] * rng.choice([1, 2, 100])
        elif kind == 4:
            data[at : at + length] = b"\xff" * length
        elif kind == 5:
            other = rng.randrange(len(data))
            data[at : at + length] = data[other : other + length]
        else:
            del data[at:]
    return bytes(data)


# Flatbuffers ---------------------------------------------------------------------------------------------------------


def mutate_words(rng: random.Random, content: bytes) -> bytes:
    """Replace words, which are offsets, lengths and sizes in flatbuffers, by others that mean something too."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4, 12])):
        width, code = rng.choice([(4, "<I"), (4, "<I"), (2, "<H"), (8, "<Q")])
        at = rng.randrange(0, max(1, len(data) - width), 2)
        known = struct.unpack_from(code, data, rng.randrange(0, max(1, len(data) - width), 2))[0]
        small = rng.randrange(0, 64)
        value = rng.choice([known, small, len(data) - at, at, len(data), 2**31 - 1, 2**32 - 1, 2**16 - 1, 2**63 - 1, 0])
        struct.pack_into(code, data, at, value & (256**width - 1))
    return bytes(data)


# JSON ----------------------------------------------------------------------------------------------------------------


def mutate_json(rng: random.Random, text: str) -> str:
    """Replace, remove, repeat and rename the entries of a document, or damage its text."""
    try:
        content = json.loads(text)
    except ValueError:
        content = None  # damaged before
    if content is None or rng.random() < 0.15:
        return mutate_bytes(rng, text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    for _ in range(rng.choice([1, 1, 2, 4])):
        content = _mutate_value(rng, content, content)
    return json.dumps(content)


def _hostile_value(rng: random.Random, whole: Any) -> Any:
    nested: Any = []
    for _ in range(rng.choice([3, 900])):
        nested = [nested] if rng.random() < 0.5 else {"a": nested}
    pool = [None, True, False, [], {}, "\ud800", nested, 10**400, whole, [whole], *INTEGERS, *FLOATS, *TEXTS]
    return rng.choice(pool)


def _mutate_value(rng: random.Random, value: Any, whole: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        kind = rng.randrange(6)
        copy = dict(value)
        if kind == 0:
            del copy[key]
        elif kind == 1:
            copy[rng.choice([*TEXTS, *value])] = copy.pop(key)
        else:
            copy[key] = _mutate_value(rng, value[key], whole)
        return copy
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        kind = rng.randrange(6)
        copy_list = list(value)
        if kind == 0:
            del copy_list[at]
        elif kind == 1:
            copy_list.append(copy_list[at])
        elif kind == 2:
            rng.shuffle(copy_list)
        else:
            copy_list[at] = _mutate_value(rng, value[at], whole)
        return copy_list
    if isinstance(value, str) and value[:1] in ("[", "{") and rng.random() < 0.8:
        return mutate_json(rng, value)  # documents in documents
    return _hostile_value(rng, whole)


# Protobuf messages ---------------------------------------------------------------------------------------------------


def mutate_model(rng: random.Random, content: bytes) -> bytes:
    """Change values, and move parts around, in a model that stays a readable message."""
    model = onnx.ModelProto.FromString(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        _mutate_message(rng, model)
    return model.SerializeToString()


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == Field.TYPE_MESSAGE:
            for inner in value if _is_repeated(field) else [value]:
                yield from _messages(inner)


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _mutate_message(rng: random.Random, model: onnx.ModelProto) -> None:
    messages = list(_messages(model))
    # Each kind of message is as likely as the others: there are more dimensions than graphs.
    kinds = sorted({message.DESCRIPTOR.name for message in messages})
    kind = rng.choice(kinds)
    chosen = rng.choice([message for message in messages if message.DESCRIPTOR.name == kind])
    fields = [field for field, _ in chosen.ListFields()]
    if rng.random() < 0.25 or not fields:
        fields = list(chosen.DESCRIPTOR.fields)
    field = rng.choice(fields)
    with contextlib.suppress(ValueError):  # protobuf does not take the value: out of the range of its type, or no UTF-8
        (_mutate_repeated if _is_repeated(field) else _mutate_single)(rng, chosen, field, messages)


def _mutate_single(rng: random.Random, message: Message, field: Any, messages: list[Message]) -> None:
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.type == Field.TYPE_MESSAGE:
        others = [other for other in messages if other.DESCRIPTOR is field.message_type]
        if others:
            copy = type(others[0]).FromString(rng.choice(others).SerializeToString())
            getattr(message, field.name).CopyFrom(copy)
    else:
        setattr(message, field.name, _scalar(rng, field, messages, getattr(message, field.name)))


def _mutate_repeated(rng: random.Random, message: Message, field: Any, messages: list[Message]) -> None:
    values = getattr(message, field.name)
    kind = rng.randrange(5)
    if kind == 0 and len(values):
        del values[rng.randrange(len(values))]
    elif kind == 1 and len(values) > 1:
        items = list(values)
        rng.shuffle(items)
        copies = [type(item).FromString(item.SerializeToString()) if _is_message(field) else item for item in items]
        del values[:]
        values.extend(copies)
    elif _is_message(field):
        others = [other for other in messages if other.DESCRIPTOR is field.message_type]
        if others:
            copy = type(others[0]).FromString(rng.choice(others).SerializeToString())
            values.insert(rng.randrange(len(values) + 1), copy)
    elif len(values) and kind < 4:
        at = rng.randrange(len(values))
        values[at] = _scalar(rng, field, messages, values[at])
    else:
        values.extend([_scalar(rng, field, messages, None)] * rng.choice([1, 1, 2, 70]))


def _is_message(field: Any) -> bool:
    return bool(field.type == Field.TYPE_MESSAGE)


def _scalar(rng: random.Random, field: Any, messages: list[Message], old: Any) -> Any:
    if field.type == Field.TYPE_STRING:
        names = [name for message in messages if message.DESCRIPTOR.name == "NodeProto" for name in message.output]
        pool = OPERATORS if field.name == "op_type" and rng.random() < 0.8 else [*TEXTS, *names, *names, *names]
        return rng.choice(pool)
    if field.type == Field.TYPE_BYTES:
        old = bytes(old or b"")
        return rng.choice([b"", old[:-1], old + b"\0", old * 2, rng.randbytes(len(old)), b"\xff" * len(old)])
    if field.type in (Field.TYPE_FLOAT, Field.TYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type == Field.TYPE_ENUM or field.name in ("data_type", "elem_type"):
        return rng.randrange(0, 28)
    if field.name in ("version", "ir_version"):
        return rng.choice([*INTEGERS, *range(6, 27)])
    return rng.choice([*INTEGERS, *((old or 0) + step for step in (-1, 1))])
