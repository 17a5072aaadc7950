"""The wire protocol page lists the fields that the code has.

After a change of a message, write the page's list anew: python tests/wire/test_documentation.py
"""

import inspect
from enum import Enum
from pathlib import Path

from msgspec import inspect as types

from greedw_p2p.record import Record
from greedw_p2p.wire.codec import BULK_TYPES, HANDSHAKE_TYPES, KIND_OF, TYPES_WITH_BODY

PAGE = Path(__file__).parents[2] / "docs" / "wire-protocol.md"
BEGIN = "<!-- written by tests/wire/test_documentation.py -->\n"
END = "<!-- end of what is written by the test -->\n"


def generated() -> str:
    """Return the page's list of messages and of the records inside them."""
    parts: list[str] = ["## Messages, field by field\n"]
    inner: dict[str, types.StructType] = {}
    for message, kind in sorted(KIND_OF.items(), key=lambda item: item[1]):
        body = ", with a body" if message in TYPES_WITH_BODY else ""
        parts.append(f"### {kind} {message.__name__} ({_connection(message)}{body})\n")
        parts.append(_described(_struct(message), inner))
    parts.append("## Records inside messages\n")
    done: set[str] = set()
    while missing := sorted(set(inner) - done):
        for name in missing:
            parts.append(f"### {name}\n")
            parts.append(_described(inner[name], inner))
            done.add(name)
    return "\n".join(parts)


def _connection(message: type[Record]) -> str:
    if message in HANDSHAKE_TYPES:
        return "handshake"
    return "bulk" if message in BULK_TYPES else "control"


def _struct(kind: type[Record]) -> types.StructType:
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    return info


def _described(info: types.StructType, inner: dict[str, types.StructType]) -> str:
    text = (inspect.getdoc(info.cls) or "").replace("``", "`")
    rows = [
        f"| {number} | `{field.name}` | {_named(field.type, inner)} |"
        for number, field in enumerate(info.fields)
    ]
    return "\n".join([text, "", "| # | field | type |", "| --- | --- | --- |", *rows, ""])


def _named(info: types.Type, inner: dict[str, types.StructType]) -> str:
    match info:
        case types.Metadata(type=wrapped):
            return _named(wrapped, inner)
        case types.StructType(cls=cls):
            inner[cls.__name__] = info
            return cls.__name__
        case types.VarTupleType(item_type=item):
            return f"array of {_named(item, inner)}{_lengths(info, 'elements')}"
        case types.UnionType(types=options):
            return " or ".join(_named(option, inner) for option in options)
        case types.EnumType(cls=cls):
            return "one of " + ", ".join(_member_named(member) for member in cls)
        case _:
            return _named_scalar(info)


def _member_named(member: Enum) -> str:
    is_text = isinstance(member.value, str)
    return f"`{member.value}`" if is_text else f"{member.value} ({member.name})"


def _named_scalar(info: types.Type) -> str:
    match info:
        case types.StrType(pattern=str(pattern)):
            return "text `" + pattern.removeprefix("^").removesuffix(r"\Z") + "`"
        case types.StrType():
            return f"text{_lengths(info, 'characters')}"
        case types.BytesType():
            return f"bytes{_lengths(info, 'bytes')}"
        case types.IntType():
            most = info.lt - 1 if info.lt is not None else info.le
            return f"integer, {_power(info.ge)} to {_power(most)}"
        case types.FloatType():
            return "float, 64 bits"
        case types.BoolType() | types.NoneType():
            return {types.BoolType: "boolean", types.NoneType: "nil"}[type(info)]
        case _:
            raise AssertionError(f"no name for {info}")


def _lengths(info: types.VarTupleType | types.StrType | types.BytesType, of: str) -> str:
    least, most = info.min_length or 0, info.max_length
    if most is None:
        return f", at least {least} {of}" if least else ""
    return f", {least} to {most:,} {of}" if least != most else f", {most:,} {of}"


def _power(number: int | None) -> str:
    assert number is not None, "every integer of a message has bounds"
    exponent = (abs(number) + 1).bit_length() - 1
    return f"2^{exponent} - 1" if exponent > 20 and number + 1 == 2**exponent else f"{number:,}"


def test_wire_protocol_page_lists_the_messages_as_the_code_has_them() -> None:
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    listed, end, _ = rest.partition(END)
    assert before
    assert begin
    assert end
    assert listed == generated(), "run: python tests/wire/test_documentation.py"


def test_wire_protocol_page_says_when_each_message_is_sent() -> None:
    by_hand = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
    missing = [f"| {kind} | {of.__name__} |" for of, kind in KIND_OF.items()]
    assert [row for row in missing if row not in by_hand] == []


def main() -> None:
    """Write the page's list anew."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + begin + generated() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
