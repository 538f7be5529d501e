"""Command lines: an exit code and one plain line, whatever the arguments are."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final
from unittest import mock

from typer.main import get_command

from tests.fuzz.evil import SECRET, TEXTS, just, texts
from tests.fuzz.kind import Check, Kind
from tests.fuzz.rigs import Installation, installation
from tests.fuzz.source import Draw, Source
from workhorse.cli import exits
from workhorse.cli.entry import build, run

CODES: Final = (exits.OK, exits.BAD_NEWS, exits.BAD_INPUT, exits.STORE_UNAVAILABLE, exits.IO_ERROR)

_APP: Final = """
from workhorse import Workhorse

app = Workhorse()

@app.task("order")
def order(value: object = None) -> None: ...
"""


def _word(source: Source) -> str:
    return source.one(  # type: ignore[no-any-return]
        texts, lambda s: str(s.one(just(0, 1, 50, -1, 1.5, "1h", "nan"))), lambda s: s.pick(TEXTS)
    )


def _or_word(*good: str) -> Draw:
    return lambda source: source.pick(good) if source.maybe() else _word(source)


_RUN: Final = _or_word("@run", "0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d")
_JSON: Final = _or_word("{}", "null", f'"{SECRET}"', "@missing", "@data", "@.")
_COMMANDS: Final[dict[tuple[str, ...], tuple[tuple[Draw, ...], dict[str, Draw | None]]]] = {
    ("enqueue",): ((_or_word("order"), _JSON), {
        "--queue": _or_word("mail"), "--priority": _or_word("5"), "--key": _or_word("k"),
        "--session": _or_word("s"), "--delay": _or_word("1h"),
        "--run-at": _or_word("2026-01-31T08:00Z"),
        "--after": _RUN, "--on-failure": _or_word("run"), "--tag": _or_word("a"),
        "--deadline": _or_word("5m"),
        "--timeout": _or_word("5m"), "--max-attempts": _or_word("3"), "--lines": None,
        "--wait-for": just("0"),
    }),
    ("runs", "list"): ((), {
        "--state": _or_word("ready"), "--task": _or_word("order"), "--queue": _or_word("mail"),
        "--limit": _or_word("5"), "--before": _RUN,
    }),
    ("runs", "show"): ((_RUN,), {}),
    ("runs", "timeline"): ((_RUN,), {"--limit": _or_word("5"), "--after": _or_word("0:0:0:")}),
    ("runs", "signal"): ((_RUN, _or_word("paid"), _JSON), {"--key": _or_word("k")}),
    ("runs", "cancel"): ((_RUN,), {
        "--by": _or_word("ops"), "--why": _or_word("why"), "--all-matching": None,
        "--state": _or_word("ready"),
        "--tag": _or_word("a"), "--limit": _or_word("1"),
        "--created-after": _or_word("2026-01-31T08:00Z"),
        "--dry-run": None, "--request-id": _or_word("r"),
    }),
    ("runs", "rerun"): ((_RUN,), {
        "--by": _or_word("ops"), "--boundaries": _or_word("none"), "--request-id": _or_word("r"),
        "--error-type": _or_word("ValueError"), "--all-matching": None, "--dry-run": None,
    }),
    ("runs", "export"): ((_RUN,), {}),
    ("runs", "replay"): ((_or_word("data", "missing", "."),), {"--optional": _or_word("charge")}),
    ("waits", "list"): ((), {
        "--run": _RUN, "--queue": _or_word("mail"), "--kind": _or_word("signal"),
        "--limit": _or_word("5"),
        "--after": _or_word("a:b"),
    }),
    ("waits", "complete"): ((_RUN, _or_word("approved"), _JSON), {"--by": _or_word("ops")}),
    ("tokens", "complete"): ((_or_word("wht_x"), _JSON), {"--key": _or_word("k")}),
    ("queues", "list"): ((), {}),
    ("queues", "pause"): ((_or_word("mail"),), {"--by": _or_word("ops"), "--why": _or_word("w")}),
    ("queues", "resume"): ((_or_word("mail"),), {"--by": _or_word("ops")}),
    ("processes",): ((), {}),
    ("measures",): ((), {}),
    ("rehint",): ((), {"--queue": _or_word("mail")}),
    ("dlq", "list"): ((), {"--queue": _or_word("mail")}),
    ("migrate",): ((), {}),
    ("maintain",): ((), {"--once": None}),
}  # fmt: skip
_GLOBALS: Final[dict[str, Draw | None]] = {
    "--json": None, "--app": _or_word("fuzzed:app", "fuzzed:order", "missing:app"),
    "--database-url": just(f"postgresql://user:{SECRET}@127.0.0.1:1/db", f"mysql://u:{SECRET}@h/d",
    SECRET, ""),
    "--schema": _or_word("workhorse"), "--environment": _or_word(""), "--lane": _or_word("memory"),
    "--queues": _or_word("a,b"), "--lease-seconds": _or_word("5"), "--concurrency": _or_word("2"),
    "--poll-ms": _or_word("5"), "--drain-seconds": _or_word("1"), "--hint-stride": _or_word("1"),
    "--build": _or_word("1"), "--metrics": _or_word("emf"), "--metrics-namespace": _or_word("W"),
    "--log-format": _or_word("json"), "--sqs-queue-urls": _or_word("{}", '{"a":1}', "["),
    "--health-port": _or_word("0"), "--share-commits": None, "--no-pooler": None,
    "--nonsense": _word,
}  # fmt: skip


def _options(source: Source, among: dict[str, Draw | None], most: int) -> list[str]:
    words: list[str] = []
    for _ in range(source.below(most + 1) if among else 0):
        name = source.pick(sorted(among))
        draw = among[name]
        words += [name] if draw is None else [name, draw(source)]
    return words


def _line(source: Source) -> list[str]:
    if source.maybe(20):
        return [word for word in source.many(_word, 5) if word not in ("-", "demo", "worker")]
    command = source.pick(sorted(_COMMANDS))
    positional, own = _COMMANDS[command]
    words = [draw(source) for draw in positional if not source.maybe(10)]
    before = _options(source, _GLOBALS, 1) if source.maybe(3) else []
    after = _options(source, own, 3) + (_options(source, _GLOBALS, 1) if source.maybe(3) else [])
    if command == ("maintain",):
        after.append("--once")
    if command[0] in ("enqueue", "maintain") or command[-1] == "replay":
        before = ["--app", "fuzzed:app", *before]
    return [*before, *command, *words, *after]


class _CommandLine:
    def __init__(self, installed: Installation) -> None:
        self._installed = installed

        @installed.app.task("order")
        def order() -> None: ...

        self._run = order.enqueue().id

    def check(self, given: list[str]) -> bool:
        """Run a command line as a process of its own would; see that it ends as it must."""
        arguments = [word.replace("@run", self._run) for word in given if "\0" not in word]
        out, err = _stream(), _stream()
        before = self._installed.commits()
        root, log = logging.getLogger(), logging.getLogger("workhorse")
        kept = root.level, list(root.handlers), log.level, list(sys.path)
        root.handlers[:] = []
        try:
            with redirect_stdout(out), redirect_stderr(err), mock.patch("sys.stdin", _stream()):
                code = run(arguments)
        finally:
            sys.modules.pop("fuzzed", None)
            root.level, root.handlers[:], log.level, sys.path[:] = kept
        said = _text(err)
        assert code in CODES, f"exit code {code}: {said[-600:]}"
        assert "Traceback" not in said
        if code == exits.BAD_INPUT:
            assert self._installed.commits() == before, f"refused, and stored something: {said}"
            assert not _text(out), "what is refused has no answer"
        if code in (exits.BAD_INPUT, exits.STORE_UNAVAILABLE, exits.IO_ERROR):
            lines = said.splitlines()
            assert lines, "a code without a word"
            assert lines[-1].startswith("workhorse: "), said[:300]
            assert len(lines[-1]) < 2_100, said[:300]
            assert all("\x1b" not in line and "\u202e" not in line for line in lines)
            assert len(said.split("\n")) == 2, said[:600]
        if not any(SECRET in word for word in arguments if "://" not in word and '"' not in word):
            assert SECRET not in said
        return code != exits.OK


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer: Any = stream.buffer
    return str(buffer.getvalue().decode())


@contextmanager
def _commanding() -> Iterator[Check]:
    here = Path.cwd()
    with installation() as installed:
        place = installed.path.parent
        (place / "fuzzed.py").write_text(_APP)
        (place / "data").write_text(f'["{SECRET}"')
        variables = {"WORKHORSE_DATABASE_URL": f"sqlite:///{installed.path}"}
        os.chdir(place)
        try:
            with (
                mock.patch.dict(os.environ, variables),
                mock.patch.object(sys, "dont_write_bytecode", True),
                # Made once: it takes longer than all the rest, and keeps nothing of a call.
                mock.patch("typer.main.get_command", return_value=get_command(build())),
                mock.patch("workhorse.cli.entry.build", return_value=None),
            ):
                yield _CommandLine(installed).check
        finally:
            os.chdir(here)


KINDS: Final = (
    Kind(
        name="commands",
        share=1_500,
        draw=_line,
        corpus=[
            [], ["--version"], ["nonsense"], ["--app", "fuzzed:app", "enqueue", "order",
            "[" * 200_000],
            ["runs", "list", "--sqs-queue-urls", "[" * 200_000],
            *(["runs", "show", each] for each in TEXTS if each != "-"),
            *(["queues", "pause", each] for each in TEXTS),
        ],
        rig=_commanding,
    ),
)  # fmt: skip
