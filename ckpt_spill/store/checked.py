"""JSON of which each member has to be there, of its type and in its range."""

from __future__ import annotations

from typing import Any, NoReturn

_DIGEST = 32


class FormatError(ValueError):
    """The bytes are not what format version 1 allows there; the message goes on after the file's name."""


def fields_of(tree: Any, what: str, *names: str) -> dict[str, Any]:
    """Give the members of an object that has just these."""
    fields: dict[str, Any] = of_type(dict, tree, what)
    if fields.keys() != set(names):
        fail(f"has a {what} with the fields {', '.join(sorted(fields)):.200}")
    return fields


def of_type(kind: type, value: Any, what: str) -> Any:
    """Give a value that has to be of a type."""
    if type(value) is not kind:
        fail(f"has a {what} that is no {kind.__name__}")
    return value


def integer(value: Any, what: str, low: int = 0, high: int = (1 << 63) - 1) -> int:
    """Give an integer that has to be in a range."""
    # bool is an int to isinstance.
    if type(value) is not int or not low <= value <= high:
        fail(f"has an impossible {what}")
    return value


def digest_of(text: Any) -> bytes:
    """Give the bytes of a hash of 256 bits in hexadecimal digits."""
    try:
        digest = bytes.fromhex(of_type(str, text, "digest"))
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST or digest.hex() != text:
        fail("has a buffer whose digest is not 64 hexadecimal digits")
    return digest


def no_constant(name: str) -> NoReturn:
    """Refuse what Python's JSON has besides JSON's values."""
    raise ValueError(f"{name} is not JSON")


def fail(message: str) -> NoReturn:
    """Raise FormatError."""
    raise FormatError(message)
