"""Tracebacks as text, in bounded time and memory, whatever the exceptions in them do.

The standard library's printer walks all of a chain, calls itself for each group and looks into
local variables for its suggestions. A handler's exceptions are data from outside, so this one
bounds each of these and trusts no method.

Source: docs/cases.md, case 17.
"""

from __future__ import annotations

import linecache
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

_MAX_EXCEPTIONS: Final = 100  # shown in one traceback
_MAX_CHAIN: Final = 10_000  # looked at, to find the root of a chain
_CHAIN_ENDS: Final = 15  # shown of a longer chain, at each of its ends
_FRAME_ENDS: Final = 25  # shown of a longer stack, at each of its ends
_MAX_GROUP_DEPTH: Final = 8
_MAX_NOTES: Final = 10
_MAX_MESSAGE_BYTES: Final = 2_000
_MAX_LINE_BYTES: Final = 300

_CAUSE: Final = "The above exception was the direct cause of the following exception:"
_CONTEXT: Final = "During handling of the above exception, another exception occurred:"


def render(error: BaseException) -> str:
    """Return an exception's traceback with its causes and its parts, the root cause first.

    It looks like Python's own. It has a few megabytes at most; see `fit`.
    """
    try:
        return "\n".join(_Printer().lines(error, 0))
    except BaseException as trouble:  # noqa: BLE001 - an error must never hide behind its printing
        return f"[the traceback could not be read: {type(trouble).__name__}]"


def text_of(error: object) -> str:
    """Return `str(error)`, or what is wrong with it."""
    try:
        return str.__str__(str(error))  # a subclass of str could have methods of its own
    except BaseException as trouble:  # noqa: BLE001 - __str__ may raise anything, even SystemExit
        return f"[the message could not be read: str() raised {type(trouble).__name__}]"


def type_name(error: object) -> str:
    """Return the type of an error, or the class itself, as `module.QualName`."""
    kind = error if isinstance(error, type) else type(error)
    try:
        return f"{kind.__module__}.{kind.__qualname__}"
    except BaseException:  # noqa: BLE001 - a metaclass may raise anything
        return type.__repr__(kind)


def fit(text: str, most: int) -> str:
    """Return text that can be stored and has `most` bytes of UTF-8 at most: its head and tail."""
    head = _storable(text[:most])
    if len(text) <= most and len(head) <= most:
        return head.decode()
    note = f"\n[... the middle of {len(text):,} characters is left out ...]\n"
    half = (most - len(note)) // 2
    tail = _storable(text[-most:])[-half:]
    return head[:half].decode(errors="ignore") + note + tail.decode(errors="ignore")


def _storable(text: str) -> bytes:
    return text.replace("\0", "\\x00").encode(errors="backslashreplace")


class _Printer:
    def __init__(self) -> None:
        self._left = _MAX_EXCEPTIONS
        self._seen: set[int] = set()

    def lines(self, error: BaseException, depth: int) -> Iterator[str]:
        """Yield the lines of an exception and those that led to it."""
        chain, whole = self._chain(error)
        gap = len(chain) - 2 * _CHAIN_ENDS
        if not whole:
            yield "[... what led to this is left out ...]"
        for at, (link, link_text) in enumerate(reversed(chain)):
            if gap > 0 and _CHAIN_ENDS <= at < _CHAIN_ENDS + gap:
                if at == _CHAIN_ENDS:
                    yield f"[... {gap:,} exceptions of this chain are left out ...]\n"
                continue
            if self._left == 0:
                yield "[... more exceptions are left out ...]"
                return
            self._left -= 1
            yield from self._one(link, depth)
            if link_text:
                yield f"\n{link_text}\n"

    def _chain(self, error: BaseException) -> tuple[list[tuple[BaseException, str]], bool]:
        """Return an exception and those that led to it, each with how it led to the one before."""
        chain: list[tuple[BaseException, str]] = []
        following: BaseException | None = error
        how = ""
        while following is not None:
            if id(following) in self._seen or len(chain) == _MAX_CHAIN:
                return chain, False
            self._seen.add(id(following))
            chain.append((following, how))
            cause = _attribute(following, "__cause__")
            if isinstance(cause, BaseException):
                following, how = cause, _CAUSE
                continue
            context = _attribute(following, "__context__")
            hidden = _attribute(following, "__suppress_context__")
            following = context if isinstance(context, BaseException) and not hidden else None
            how = _CONTEXT
        return chain, True

    def _one(self, error: BaseException, depth: int) -> Iterator[str]:
        trace = _attribute(error, "__traceback__")
        if isinstance(trace, TracebackType):
            yield "Traceback (most recent call last):"
            yield from _frames(trace)
        message = fit(text_of(error), _MAX_MESSAGE_BYTES)
        name = fit(type_name(error), _MAX_LINE_BYTES).removeprefix("builtins.")
        yield f"{name}: {message}" if message else name
        notes = _attribute(error, "__notes__")
        if type(notes) is list:
            yield from (fit(text_of(note), _MAX_MESSAGE_BYTES) for note in notes[:_MAX_NOTES])
        parts = _attribute(error, "exceptions") if isinstance(error, BaseExceptionGroup) else ()
        if type(parts) is not tuple:
            return
        for number, part in enumerate(parts, 1):
            if self._left == 0 or depth == _MAX_GROUP_DEPTH:
                yield f"  [... {len(parts) - number + 1:,} parts of this group are left out ...]"
                return
            yield f"  + {number} of {len(parts):,}"
            for block in self.lines(part, depth + 1):
                yield from (f"  | {line}" for line in block.split("\n"))


def _frames(trace: TracebackType) -> Iterator[str]:
    first: list[str] = []
    last: deque[TracebackType] = deque(maxlen=_FRAME_ENDS)
    count = 0
    step: TracebackType | None = trace
    while step is not None:
        if count < _FRAME_ENDS:
            first.append(_frame(step))
        else:
            last.append(step)
        count += 1
        step = step.tb_next
    yield from first
    if (gap := count - len(first) - len(last)) > 0:
        yield f"  [... {gap:,} calls are left out ...]"
    yield from (_frame(step) for step in last)


def _frame(step: TracebackType) -> str:
    code = step.tb_frame.f_code
    where = f'  File "{fit(code.co_filename, _MAX_LINE_BYTES)}", line {step.tb_lineno}'
    shown = f"{where}, in {fit(code.co_name, _MAX_LINE_BYTES)}"
    source = _source(step)
    return f"{shown}\n    {fit(source, _MAX_LINE_BYTES)}" if source else shown


def _source(step: TracebackType) -> str:
    try:
        frame = step.tb_frame
        return linecache.getline(frame.f_code.co_filename, step.tb_lineno, frame.f_globals).strip()
    except Exception:  # noqa: BLE001 - a module's own loader is asked; the line is a courtesy
        return ""


def _attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except BaseException:  # noqa: BLE001 - a subclass may put a property there that raises
        return None
