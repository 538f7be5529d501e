"""What an error has to be, whatever it was raised for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from tests.fuzz.evil import SECRET
from workhorse.errors import WorkhorseError

LONGEST: Final = 1_000
_VAGUE: Final = re.compile(r"^(error|failed|invalid|bad|wrong|none|)$", re.IGNORECASE)


def refusal_of(
    call: Callable[[], Any], *, also: tuple[type[Exception], ...] = (), names: bool = False
) -> WorkhorseError | None:
    """Make a call; return the typed error that it was refused with, or None where it was taken.

    Args:
        names: What was given are names, which may be shown.
        also: Errors that are documented for this call beside those.

    Raises:
        Exception: The call raised something else; or its message is none for a log.
    """
    try:
        call()
    except WorkhorseError as error:
        judge_message(str(error), names=names)
        return error
    except also:
        return WorkhorseError("as documented")
    return None


def judge_message(said: str, *, names: bool = False, longest: int = LONGEST) -> None:
    """See that a message is one plain line that can be logged: no payload, no secret, no forgery.

    Raises:
        AssertionError: It is not.
    """
    assert names or SECRET not in said, f"a message holds what must not be shown: {said!a:.300}"
    assert len(said) <= longest, f"a message of {len(said):,} characters: {said!a:.300}"
    assert said.isprintable(), f"a message holds what cannot be printed: {said!a:.300}"
    assert not _VAGUE.match(said.strip()), f"a message says nothing: {said!a}"
    assert len(said.split()) >= 4, f"a message says too little: {said!a}"
