"""Hand-made evil: texts, numbers and objects that break what was not made for them."""

from __future__ import annotations

import decimal
import enum
import fractions
import pathlib
import uuid
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from typing import Any, Final

from tests.fuzz.source import Draw, Source

SECRET: Final = "hunter2canary"  # noqa: S105 - planted, to be looked for in messages
"""Stands in values and credentials, and must come out nowhere."""

TEXTS: Final = (
    "", " ", "\t", "\0", "a\0b", "\ud800", "a\udfffb", "\udce4", "\u202egnp.exe", "\u200b",
    "\ufeffx",
    "\r\n2026-01-31T08:00:00.000Z INFO worker: forged", "a\nb", "\u2028", "\x1b[31mred\x1b[0m",
    "\x7f",
    "a" * 201, "a" * 257, "a" * 65_536, "\U0001f600" * 300, "é" * 200, "e\u0301", "İ", "ß", "١٢٣",
    "²",
    "%s%n%(x)s%d", "{0.__class__}", "{}", "'; drop table workhorse.live; --", '"', "''", "\\",
    "$1", ":x",
    "?", "?1", "%%", "null", "true", "NaN", "Infinity", "-1", "0", "1e999", "1_000", "9" * 5_000,
    "0x10",
    "../../etc/passwd", "$(id)", "`id`", "default", "all", "none", "a,b", ",", "=", "--", "-", "@",
    "@@",
    "[" * 70, "[" * 200_000, '{"a":' * 5_000, "{", '"', "[1,2", '{"a":1,"a":2}', "\ufffe",
    "\U0010ffff",
    "00000000-0000-0000-0000-000000000000", "{00000000000000000000000000000000}",
)  # fmt: skip

HUGE: Final = (10**400, 10**4299, 10**4300, -(10**5000))
"""The last two are more than Python turns into text."""
INTS: Final = (
    0, 1, -1, 50, 100, 101, 1000, 1001, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**308,
)  # fmt: skip
FLOATS: Final = (0.0, -0.0, 0.5, 1e-320, 1e308, float("nan"), float("inf"), float("-inf"))

_EARLIEST: Final = datetime.min  # noqa: DTZ901 - the zone is what is drawn, or missing
_LATEST: Final = datetime.max  # noqa: DTZ901


class Unspeakable:
    """Cannot be shown, compared, hashed or asked for its truth."""

    def _raise(self, *_: object) -> Any:
        raise RuntimeError(f"not even here: {SECRET}")

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __format__ = _raise


class OddText(str):
    __slots__ = ()


class OddInt(int):
    pass


class OddDict(dict[Any, Any]):
    pass


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 1


def cycle() -> list[Any]:
    one: list[Any] = []
    one.append({"again": one})
    return one


def bomb(levels: int = 60) -> list[Any]:
    """Small in memory, and endless as JSON."""
    one: list[Any] = ["x"]
    for _ in range(levels):
        one = [one, one, one]
    return one


def deep(levels: int) -> list[Any]:
    one: list[Any] = []
    for _ in range(levels):
        one = [one]
    return one


def texts(source: Source, most: int = 40) -> str:
    """Any characters, lone surrogates too, and the corpus, alone and put together."""
    match source.below(8):
        case 0 | 1 | 2:
            return _of(source, _PLAIN, most)
        case 3:
            return _of(source, _PLAIN, most) + source.pick(TEXTS)
        case 4:
            return "".join(chr(source.below(0x110000)) for _ in range(source.below(most)))
        case 5:
            return "".join(chr(source.below(0x250)) for _ in range(source.below(most)))
        case _:
            return source.pick(TEXTS)


def _of(source: Source, alphabet: str, most: int) -> str:
    return "".join(source.pick(alphabet) for _ in range(source.below(most)))


def typed(alphabet: str, most: int = 20) -> Draw:
    """Texts of an alphabet."""
    return lambda source: _of(source, alphabet, most)


def just(*values: Any) -> Draw:
    """One of these."""
    return lambda source: source.pick(values)


def numbers(source: Source) -> Any:
    return source.one(
        just(*INTS),
        lambda s: s.below(2_000) - 1_000,
        just(*FLOATS),
        lambda s: (s.below(2_000_000) - 1_000_000) / 997,
        just(True, False),
        just(*HUGE),
    )


def instants(source: Source) -> datetime:
    at = source.pick([_EARLIEST, _LATEST, _EARLIEST + timedelta(days=739_000)])
    with suppress(OverflowError):
        at += timedelta(microseconds=source.below(10**16) - 10**15)
    if source.maybe(4):
        return at
    return at.replace(tzinfo=timezone(timedelta(minutes=source.below(2 * 1439) - 1439)))


def durations(source: Source) -> timedelta:
    return source.one(  # type: ignore[no-any-return]
        lambda s: timedelta(microseconds=s.below(10**15) - 10**12),
        just(
            timedelta.min, timedelta.max, timedelta(0), timedelta(microseconds=1),
            timedelta(days=365), timedelta(days=365, microseconds=1),
        ),
    )  # fmt: skip


def leaves(source: Source) -> Any:
    """Objects of all types, whatever sense they make."""
    return source.one(numbers, texts, texts, instants, durations, _odd)


def _odd(source: Source) -> Any:
    return source.pick(_MAKERS)()


def objects(source: Source, levels: int = 3) -> Any:
    """Any Python object, nested or not."""
    if levels == 0:
        return leaves(source)

    def inner(s: Source) -> Any:
        return objects(s, levels - 1)

    def key(s: Source) -> Any:
        return s.one(texts, texts, texts, lambda s: s.below(5), just(None, True, b"", 1.5, (1,)))

    return source.one(
        leaves,
        json_values,
        lambda s: s.many(inner, 4),
        lambda s: {key(s): inner(s) for _ in range(s.below(5))},
        lambda s: {texts(s, 10): inner(s) for _ in range(s.below(5))},
        lambda s: tuple(s.many(inner, 2)),
    )


def json_values(source: Source, levels: int = 3) -> Any:
    """What can be JSON, evil or not; NaN too, which Python writes and reads."""
    if levels == 0 or source.maybe(3):
        return source.one(
            just(None, True, False), texts, just(*INTS), just(*FLOATS), just(SECRET, 10**400)
        )

    def inner(s: Source) -> Any:
        return json_values(s, levels - 1)

    return source.one(
        lambda s: s.many(inner, 4), lambda s: {texts(s, 12): inner(s) for _ in range(s.below(5))}
    )


def or_evil(good: Draw) -> Draw:
    """Mostly what is well formed, so that each part meets evil with all else in order."""
    return lambda source: good(source) if source.below(4) else objects(source, 1)


def or_json(good: Draw) -> Draw:
    """As `or_evil`, with nothing that JSON cannot hold."""
    return lambda source: good(source) if source.below(4) else json_values(source, 1)


_PLAIN: Final = "abcz09_-.:/ "
_MAKERS: Final[tuple[Callable[[], Any], ...]] = (
    lambda: None, Unspeakable, cycle, bomb, lambda: deep(63), lambda: deep(64), lambda: deep(65),
    lambda: deep(100_000), lambda: OddText("x"), lambda: OddInt(1), OddDict, object, UserDict,
    OrderedDict,
    lambda: defaultdict(list), bytes, bytearray, lambda: b"\0\xff", lambda: date.max, time,
    lambda: iter([1]),
    lambda: Colour.RED, lambda: Level.HIGH, lambda: int, lambda: len, lambda: ...,
    lambda: NotImplemented,
    lambda: range(3), lambda: pathlib.PurePath("x"), lambda: ValueError(SECRET), lambda: SECRET,
    lambda: decimal.Decimal("NaN"), lambda: fractions.Fraction(1, 3), lambda: uuid.UUID(int=0),
    lambda: 1j,
    lambda: {1, 2}, frozenset, lambda: memoryview(b"x"), lambda: "x" * 70_000,
    lambda: ["x" * 100] * 700,
)  # fmt: skip

OBJECTS: Final[tuple[Any, ...]] = (
    *TEXTS, *INTS, *HUGE, *FLOATS, None, True, b"\0", bytearray(b"x"), (), (1, 2), {1}, {1: 2},
    {None: 1}, {"a": {2: 3}},
    {"\ud800": 1}, {"a\0": 1}, {"k" * 70_000: ()}, [SECRET, b""], Unspeakable(), [Unspeakable()],
    {"a": Unspeakable()}, cycle(), bomb(), deep(63), deep(64), deep(65), deep(200_000),
    OddText("x"), OddInt(1),
    OddDict(), Colour.RED, Level.HIGH, decimal.Decimal("1.5"), fractions.Fraction(1, 3),
    uuid.UUID(int=0),
    _EARLIEST, _LATEST, _LATEST.replace(tzinfo=timezone(timedelta(hours=-23))),
    _EARLIEST.replace(tzinfo=timezone(timedelta(hours=23))), timedelta.min, timedelta.max,
    date.max,
    object(), int, len, ..., NotImplemented, range(3), pathlib.PurePath("x"), defaultdict(list),
    UserDict(),
    ValueError(SECRET), "x" * 2_000_000, ["x" * 1_000] * 2_000, {"a": [1.5, float("nan")]},
    memoryview(b"x"),
)  # fmt: skip
