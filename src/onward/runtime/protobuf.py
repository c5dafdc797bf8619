"""Protobuf messages, field by field: a message is a sequence of (field number, wire type, payload).

Files come from anywhere: what a damaged one can cost is bounded here, by the length of a number and, through a
`Budget`, by how many fields are looked at and how deep messages are nested.
"""

from __future__ import annotations

from collections.abc import Iterator

Buffer = bytes | memoryview

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_LONGEST_VARINT = 10  # bytes: 64 bits, 7 in each
_WIDTH = {FIXED32: 4, FIXED64: 8}


class Budget:
    """How much of a file may be looked at: far more than any real model needs, and some seconds of work.

    Args:
        fields: a node is about ten of them.
        depth: of subgraphs in subgraphs; protobuf itself allows 100 messages, of which a subgraph takes three.
    """

    def __init__(self, fields: int = 2**22, depth: int = 32) -> None:
        self._fields, self._depth = fields, depth

    def take(self) -> None:
        """Pay for one field."""
        self._fields -= 1
        if self._fields < 0:
            raise ValueError("it has millions of parts")

    def deeper(self, depth: int) -> int:
        """The depth of what is inside something at this depth."""
        if depth >= self._depth:
            raise ValueError("its subgraphs are nested too deeply")
        return depth + 1


def fields(message: memoryview, budget: Budget | None = None) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Each field of a message: its number, its payload, and all of its bytes."""
    position = 0
    while position < len(message):
        if budget is not None:
            budget.take()
        start = position
        key, position = read_varint(message, position)
        wire_type = key & 7
        if wire_type == BYTES:
            size, position = read_varint(message, position)
        elif wire_type == VARINT:
            size = read_varint(message, position)[1] - position
        elif wire_type in _WIDTH:
            size = _WIDTH[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} does not occur in ONNX files")
        if position + size > len(message):
            raise ValueError("it ends too early")
        yield key >> 3, message[position : position + size], message[start : position + size]
        position += size


def payloads(message: memoryview, *numbers: int) -> Iterator[memoryview]:
    """The payloads of the fields with one of these numbers."""
    return (payload for number, payload, _ in fields(message) if number in numbers)


def first(message: memoryview, *path: int) -> memoryview | None:
    """The payload of the first field of that number, in it the first of the next number, and so on."""
    found: memoryview | None = message
    for number in path:
        found = None if found is None else next(payloads(found, number), None)
    return found


def text(message: memoryview, number: int) -> str:
    """The text in a field; empty if there is none."""
    payload = first(message, number)
    return "" if payload is None else str(payload, "utf-8")


def read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """A number of up to 64 bits, and where it ends."""
    value = 0
    for index, byte in enumerate(message[position : position + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if not byte & 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    raise ValueError("a number in it does not end")


def number(payload: memoryview) -> int:
    """The signed number that is all of a payload."""
    value, end = read_varint(payload, 0)
    if end != len(payload):
        raise ValueError("there is something else in the place of a number")
    return value - 2**64 if value >= 2**63 else value


def numbers(payload: memoryview) -> Iterator[int]:
    """The numbers of a repeated field, of which protobuf packs several into one payload."""
    position = 0
    while position < len(payload):
        value, position = read_varint(payload, position)
        yield value - 2**64 if value >= 2**63 else value


def varint(value: int) -> bytes:
    """A number, which negative ones are as their 64 bits."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_number(number: int, value: int) -> list[Buffer]:
    return [varint(number << 3 | VARINT), varint(value)]


def encode_bytes(number: int, payload: Buffer) -> list[Buffer]:
    return [varint(number << 3 | BYTES), varint(len(payload)), payload]


def encode_text(number: int, value: str) -> list[Buffer]:
    return encode_bytes(number, value.encode())
