"""JSON values: what may be stored, how it is written, and how large it may be.

One rule for both databases: a value that cannot make the trip unchanged in value and type is
refused at the call, with the path of the bad part. So `1` comes back as `1` and not `1.0`, a tuple
is refused and not turned into a list, and NaN never reaches a database.

Source: docs/design.md, section 7; docs/cases.md, cases 7 and 8.
"""

from __future__ import annotations

import hashlib
import json
import json.encoder
import math
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

from workhorse.errors import UnstorableValueError, ValueTooLargeError

Value: TypeAlias = "dict[str, Value] | list[Value] | str | int | float | bool | None"
"""What can be stored."""

MAX_DEPTH: Final = 64
MAX_PAYLOAD_BYTES: Final = 1024 * 1024
MAX_RESULT_BYTES: Final = 1024 * 1024
MAX_DELIVERY_BYTES: Final = 64 * 1024
_MAX_DIGITS: Final = (
    4300  # what Python itself converts between int and text without a quadratic cost
)
_FIRST_TOO_LONG: Final = 10**_MAX_DIGITS
_LARGEST_QUICK_INT: Final = 10**18

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")

_encoder: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_scan: Final = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_write_sorted = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
).encode


def encode(what: str, value: object, *, cap: int) -> str:
    """Return the compact JSON of a value.

    Args:
        what: How errors call it, e.g. `payload of task 'mail'`.
        value: dict with str keys, list, str, int, finite float, bool or None, 64 levels at most.
        cap: The most bytes of UTF-8 that the JSON may have.

    Raises:
        UnstorableValueError: A part is of another type or cannot be stored; `path` names it.
        ValueTooLargeError: The JSON is larger than `cap`.
    """
    if value is None:  # by far the most frequent result
        return "null"
    _check(what, value, cap)
    text = "".join(_write(value, 0))
    if len(text) * 4 > cap:  # a character has at most four bytes
        size = len(text.encode())
        if size > cap:
            raise ValueTooLargeError(what, size, cap)
    return text


def decode(text: str) -> Any:
    """Return the value of stored JSON; a fresh object at each call."""
    if text == "null":
        return None
    # The scanner that `json.loads` comes to after looking for white space at both ends: what is
    # stored has none, and what comes from elsewhere takes the long way.
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


def fingerprint(text: str) -> str:
    """Return the SHA-256, in hex, of the canonical form (sorted keys) of a value's JSON."""
    return hashlib.sha256(_write_sorted(json.loads(text)).encode()).hexdigest()


def _writer() -> Callable[[object, int], Iterable[str]]:
    """Return what writes a value: what `json` makes anew for each, which costs more than most."""
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:
        return lambda value, _level: _encoder.iterencode(value)
    text = json.encoder.encode_basestring
    return make(None, _encoder.default, text, None, ":", ",", False, False, False)  # type: ignore[no-any-return]


_write: Final = _writer()

_Trail: TypeAlias = "tuple[_Trail, str | int] | None"
"""How a walk got to a part: from which one, by which key or index. A path is made where one is
asked for."""


def _check(what: str, root: object, cap: int) -> None:
    """Walk without recursion, so that a deep value cannot exhaust the stack before it is refused.

    Each part costs a byte at least, so the walk ends at the cap: lists that hold each other many
    times over are small in memory and endless as JSON.
    """
    seen = 0
    stack: list[tuple[Any, _Trail, int]] = [(root, None, 1)]
    while stack:
        value, trail, depth = stack.pop()
        seen += 1
        if seen > cap:
            raise ValueTooLargeError(what, seen, cap)
        kind = type(value)
        if kind is str:
            if not value.isascii() or "\0" in value:
                _check_text(what, value, trail)
        elif value is None or kind is bool:
            continue
        elif kind is int:
            if not -_LARGEST_QUICK_INT < value < _LARGEST_QUICK_INT:
                _check_digits(what, value, trail)
        elif kind is float:
            if not math.isfinite(value):
                raise _refusal(what, trail, f"holds {value}, which JSON has no number for")
        elif kind is dict or kind is list:
            if depth > MAX_DEPTH:
                raise _refusal(what, trail, f"is nested more than {MAX_DEPTH} levels deep")
            if kind is list:
                stack.extend([(part, (trail, at), depth + 1) for at, part in enumerate(value)])
                continue
            for key, part in value.items():
                if type(key) is not str:
                    raise _refusal(what, trail, f"has a key of type {type(key).__name__}, not str")
                if not key.isascii() or "\0" in key:
                    _check_text(what, key, trail)
                stack.append((part, (trail, key), depth + 1))
        else:
            raise _refusal(
                what, trail, f"is a {kind.__module__}.{kind.__qualname__}{_advice(value)}"
            )


def _check_text(what: str, text: str, trail: _Trail) -> None:
    if "\0" in text:
        raise _refusal(what, trail, "holds a NUL character, which PostgreSQL cannot store in text")
    if _SURROGATE.search(text):
        raise _refusal(what, trail, "holds a lone surrogate, which UTF-8 cannot carry")


def _check_digits(what: str, number: int, trail: _Trail) -> None:
    # Compared, not counted: converting the number to text is what would be slow.
    if not -_FIRST_TOO_LONG < number < _FIRST_TOO_LONG:
        raise _refusal(what, trail, f"is a whole number of more than {_MAX_DIGITS:,} digits")


def step(key: str) -> str:
    """Return how a path goes on through a dict's key: `.key`, or `['odd key']`."""
    if _PLAIN_KEY.fullmatch(key):
        return f".{key}"
    shown = ascii(key if len(key) <= 60 else key[:57] + "...")
    # A character may take ten when it is escaped.
    return f"[{shown}]" if len(shown) <= 80 else f"[{shown[:76]}...{shown[0]}]"


def _path(trail: _Trail) -> str:
    parts = []
    while trail is not None:
        trail, at = trail
        parts.append(step(at) if isinstance(at, str) else f"[{at}]")
    return "".join(["$", *reversed(parts)])


def _advice(value: object) -> str:
    if isinstance(value, (str, int, float, dict, list)):
        return ", a subclass whose type would not come back"
    if isinstance(value, tuple):
        return ", which would come back as a list; pass a list"
    if isinstance(value, Awaitable):
        return ", which nobody has awaited; is an `await` missing?"
    return "; pass a plain JSON value (a model does for payloads and results: annotate the task)"


def _refusal(what: str, trail: _Trail, problem: str) -> UnstorableValueError:
    path = _path(trail)
    said = path if len(path) <= 400 else f"{path[:150]} ... {path[-240:]}"
    return UnstorableValueError(f"{what}: {said} {problem}; nothing was stored", path=path)
