"""Command lines and variables of real processes: a code, and one plain line on standard error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.fuzz.evil import SECRET, TEXTS
from tests.fuzz.kind import Check, Kind
from tests.fuzz.kinds.commands import _APP as APP
from tests.fuzz.kinds.commands import CODES
from tests.fuzz.kinds.commands import _line as line
from tests.fuzz.kinds.settings import _variables as variables
from tests.fuzz.rigs import installation
from tests.fuzz.source import Source
from workhorse.cli import exits

_LONGEST: Final = 100_000
"""A process cannot be given an argument or a variable of more than 128 KiB."""


@contextmanager
def _running() -> Iterator[Check]:
    with installation() as installed:
        place = installed.path.parent
        (place / "fuzzed.py").write_text(APP)
        (place / "data").write_text(f'["{SECRET}"')
        known = {"WORKHORSE_DATABASE_URL": f"sqlite:///{installed.path}"}
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WORKHORSE_", "AWS_", "ECS_"))
        }

        def check(given: tuple[list[str], dict[str, str]]) -> bool:
            arguments, own = given
            before = installed.commits()
            ended = subprocess.run(
                [sys.executable, "-m", "workhorse.cli", *arguments],
                cwd=place,
                env=kept | known | own,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            said = ended.stderr.decode()
            ended.stdout.decode()
            assert ended.returncode in CODES, f"exit code {ended.returncode}: {said[-600:]}"
            assert "Traceback" not in said, said[-600:]
            lines = said.split("\n")
            if ended.returncode in (exits.BAD_INPUT, exits.STORE_UNAVAILABLE, exits.IO_ERROR):
                assert len(lines) == 2, said[:600]
                assert lines[0].startswith("workhorse: "), said[:600]
                assert lines[0].isprintable(), said[:600]
                assert not ended.stdout
            if ended.returncode == exits.BAD_INPUT:
                assert installed.commits() == before, f"refused, and stored something: {said}"
            return ended.returncode != exits.OK

        yield check


def _process(source: Source) -> tuple[list[str], dict[str, str]]:
    arguments = [word for word in line(source) if _can_be_given(word)]
    own: dict[str, Any] = {}
    if source.maybe(3):
        # Where its data are is said; all else may be as evil as it likes.
        own = {n: v for n, v in variables(source).items() if _can_be_given(v)}
        own.pop("WORKHORSE_DATABASE_URL", None)
        own.pop("WORKHORSE_DATABASE_SECRET", None)
        own.pop("WORKHORSE_LANE", None)
    return arguments, own


def _can_be_given(word: str) -> bool:
    if "\0" in word or len(word) > _LONGEST:
        return False
    try:
        return len(os.fsencode(word)) <= _LONGEST
    except UnicodeEncodeError:
        return False


KINDS: Final = (
    Kind(
        name="processes",
        share=100,
        draw=_process,
        corpus=[
            ([], {}),
            (["--version"], {}),
            (["runs", "list"], {"WORKHORSE_LOG_LEVEL": "loud\n"}),
            (["runs", "list"], {"WORKHORSE_SQS_QUEUE_URLS": "[" * 50_000}),
            *((["runs", "show", each], {}) for each in TEXTS[::8] if _can_be_given(each)),
        ],
        rig=_running,
    ),
)
