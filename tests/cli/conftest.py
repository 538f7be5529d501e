"""The command line in this process: its exit code and both of its outputs."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from workhorse.cli.entry import run
from workhorse.cli.loading import load_app

SHOP = """
from datetime import timedelta

from workhorse import RetryPolicy, Workhorse

app = Workhorse()
something = "else"


@app.task("orders.charge")
def charge(order: dict) -> dict:
    return {"charged": order}


@app.task("orders.fail", queue="mail", retry=RetryPolicy(max_attempts=2, first=timedelta(0)))
def fail(reason: str = "no money") -> None:
    raise ValueError(reason)
"""


@dataclass(frozen=True)
class Told:
    """What a command line answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class CommandLine:
    """Runs command lines one after the other, each as a process of its own would start."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Told:
        self._capsys.readouterr()
        with self.fresh_modules():
            code = run(arguments)
        captured = self._capsys.readouterr()
        return Told(code, captured.out, captured.err)

    def ok(self, *arguments: str) -> Told:
        """Run a command line that is to succeed."""
        told = self(*arguments)
        assert told.code == 0, told
        return told

    def drain(self) -> int:
        """Execute what the shop's workers can execute."""
        with self.fresh_modules(), load_app("shop:app") as app:
            worker = app.worker(["default", "mail"])
            count = worker.drain()
            worker.stop(0)
        return count

    @contextmanager
    def fresh_modules(self) -> Iterator[None]:
        """Forget the modules of the folder afterwards, and what a command did to the process."""
        path, known = list(sys.path), set(sys.modules)
        root, log = logging.getLogger(), logging.getLogger("workhorse")
        before = root.level, list(root.handlers), log.level
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - known:
                place = getattr(sys.modules[name], "__file__", None) or ""
                if place.startswith(str(self.folder)):
                    del sys.modules[name]
            root.level, root.handlers[:], log.level = before


@pytest.fixture
def make_cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], CommandLine]:
    """Makes a command line in a folder that holds `shop.py`, on a database."""

    def make(url: str) -> CommandLine:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.setenv("WORKHORSE_DATABASE_URL", url)
        (tmp_path / "shop.py").write_text(SHOP)
        return CommandLine(tmp_path, capsys)

    return make


@pytest.fixture
def cli(make_cli: Callable[[str], CommandLine], sqlite_url: str) -> CommandLine:
    """The command line on a migrated SQLite database."""
    return make_cli(sqlite_url)


@pytest.fixture
def cli_on_both(make_cli: Callable[[str], CommandLine], database_url: str) -> CommandLine:
    """The command line on a migrated database, SQLite and then PostgreSQL."""
    return make_cli(database_url)
