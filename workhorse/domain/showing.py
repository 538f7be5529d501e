"""How a message shows what somebody gave: short, in printable ASCII, and without fail.

Whatever is refused may be anything: a number too long to be turned into text, a list that holds
itself many times over, an object whose own `repr` fails. So only plain values are shown, of any
other the type.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeVar

E = TypeVar("E", bound=StrEnum)

_LONGEST: Final = 80
_LARGEST_INT: Final = 10**_LONGEST


def shown(value: object) -> str:
    """Return what is shown of a value: text and numbers themselves, of anything else the type."""
    if isinstance(value, str):
        # Cut before it is escaped: it may be as long as it likes.
        cut = str.__getitem__(value, slice(0, _LONGEST + 1))
        return _short(ascii(cut), cut=len(cut) > _LONGEST)
    if value is None or type(value) in (bool, float):
        return repr(value)
    if type(value) is int:
        small = -_LARGEST_INT < value < _LARGEST_INT
        return repr(value) if small else f"a whole number of more than {_LONGEST} digits"
    kind = type(value)
    return f"a value of type {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")


def member(of: type[E], value: object) -> E | None:
    """Return the member that a text stands for; None where it stands for none, or is no text.

    An enumeration that is asked itself puts the `repr` of what it does not know into its error.
    """
    if not isinstance(value, str):
        return None
    return next((each for each in of if each.value == value), None)


def _short(text: str, *, cut: bool) -> str:
    return text if len(text) <= _LONGEST and not cut else f"{text[: _LONGEST - 3]}..."
