"""What comes over the socket of a process: messages, or one error that says it is none."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Final, Literal

from tests.fuzz.evil import json_values, just, or_json, texts
from tests.fuzz.kind import Kind
from tests.fuzz.source import Source
from workhorse.runtime.execution.processes import frames

Side = Literal["to_child", "from_child"]


def _fed(side: Side, pieces: Iterable[bytes]) -> tuple[list[Any], bool]:
    """Return the messages that came, and whether the stream was refused."""
    came: list[Any] = []
    reader = frames.Frames(side)
    try:
        for piece in pieces:
            came += reader.feed(piece)
    except ValueError:
        return came, True
    return came, False


def _check(given: tuple[Side, bytes]) -> bool:
    side, data = given
    came, refused = _fed(side, [data])
    again, refused_again = _fed(side, [data[at : at + 7] for at in range(0, len(data), 7)])
    assert (again, refused_again) == (came, refused), "pieces were read otherwise than the whole"
    write: Any = frames.to_child if side == "to_child" else frames.from_child
    for message in came:
        assert _fed(side, [write(message)]) == ([message], False)
    return refused


def _frame(source: Source) -> bytes:
    def boundary(s: Source) -> Any:
        return s.fields(
            name=or_json(just("charge")), kind=or_json(just("checkpoint", "timer")),
            seq=or_json(just(1)), value=or_json(just("1")),
        ) | s.options(delay_ms=json_values,
        wake_at=or_json(just("2026-01-31T00:00:00Z")))  # fmt: skip

    kind = source.pick(
        ["ready", "begun", "asked", "read", "progressed", "suspending", "ended", "prepare", "told",
         "refused", "answered", "begin", "nonsense"]
    )  # fmt: skip
    body = {"kind": kind} | source.options(
        number=or_json(just(1)), boundary=boundary, name=or_json(just("charge")),
        of=or_json(just("child")),
        value=or_json(just("1")), result=or_json(just("1")), waits=json_values,
        reason=or_json(just("error")),
        signal=or_json(just("stopping")), places=json_values, error=texts, message=texts,
        answer=json_values,
        stopped=json_values, failure=json_values, token=json_values, child=json_values,
        closes=json_values,
    )  # fmt: skip
    text = json.dumps(body if source.below(8) else json_values(source)).encode()
    length = len(text) if source.below(8) else source.pick([0, 1, len(text) + 1, 2**31, 2**32 - 1])
    return struct.pack("!I", length) + text


def _draw(source: Source) -> tuple[Side, bytes]:
    side: Side = "to_child" if source.maybe() else "from_child"
    data = b"".join(source.many(_frame, 3))
    if source.maybe(4):
        data = bytes(source.below(256) for _ in range(source.below(40))) + data
    if source.maybe(4):
        data = data[: source.below(len(data) + 1)]
    return side, data


KINDS: Final = (
    Kind(
        name="frames",
        share=6_000,
        draw=_draw,
        corpus=[
            (side, struct.pack("!I", len(body)) + body)
            for side in ("to_child", "from_child")
            for body in (b"", b"{}", b"[" * 200_000, b"\xff", b'{"kind":"ready"}', b"1" * 9_000)
        ],
        rig=lambda: nullcontext(_check),
    ),
)  # fmt: skip
