"""References of wait tokens: whoever knows one can complete it, so nobody can guess one.

Source: docs/design.md, section 7
"""

from __future__ import annotations

import secrets
from typing import Final

from workhorse.errors import InvalidNameError

_PREFIX: Final = "wht_"
_BYTES: Final = 32
_LONGEST: Final = 256


def new_reference() -> str:
    """Draw a reference: 256 random bits behind a prefix that tells what it is."""
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def check_reference(ref: object) -> str:
    """Return a reference: 1 to 256 printable characters. No message repeats it."""
    if not isinstance(ref, str):
        raise InvalidNameError(f"a token's reference must be text; got {type(ref).__name__}")
    if not 1 <= len(ref) <= _LONGEST or not ref.isprintable():
        raise InvalidNameError(
            f"a token's reference is 1 to {_LONGEST} printable characters; this one is not"
        )
    return ref
