"""Get two programs of others with which a fleet is broken. Needs nothing but the standard library.

    python -m tools.fault_tools install pgbouncer libfaketime

- pgbouncer: a pooler of connections. The machine's own is taken where there is one; else Debian's
  package is fetched and unpacked, with the libraries that are missing. No root is needed.
- libfaketime: moves a process's clock. The library of PyPI's package, which is for Linux.

Both go to `.emulators/NAME`, whole or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / ".emulators"
PINS: Final = ROOT / "requirements" / "emulators"
NAMES: Final = ("pgbouncer", "libfaketime")
INSTALL: Final = "python -m tools.fault_tools install {}"
_LONGEST_S: Final = 300


class FaultToolError(Exception):
    """A tool cannot be installed; the message is for the person who asked for it."""


@dataclass(frozen=True)
class Pgbouncer:
    """A program, and the libraries that were fetched with it."""

    program: Path
    libraries: tuple[Path, ...] = field(default=())


def pgbouncer() -> Pgbouncer | None:
    """Return the machine's pgbouncer, else the fetched one; None where there is neither."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found:
        return Pgbouncer(Path(found))
    here = FOLDER / "pgbouncer"
    program = here / "pgbouncer"
    if not program.exists():
        return None
    return Pgbouncer(program, tuple(sorted(here.glob("lib*"))))


def faketime_library() -> Path | None:
    """Return the library that moves clocks; None where it is not there."""
    return next((FOLDER / "libfaketime").rglob("libfaketime.so.1"), None)


# -- installing ----------------------------------------------------------------------------------


def install(name: str) -> None:
    """Install a tool; nothing to do where it stands.

    Raises:
        FaultToolError: It is unknown, or cannot be installed.
    """
    makers: dict[str, tuple[Callable[[], object], Callable[[Path], None]]] = {
        "pgbouncer": (pgbouncer, _fetch_pgbouncer),
        "libfaketime": (faketime_library, _fetch_libfaketime),
    }
    if name not in makers:
        raise FaultToolError(f"no tool is called {name!r}; there are {', '.join(NAMES)}")
    stands, fetch = makers[name]
    if stands():
        return
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=FOLDER) as made:
        fresh = Path(made) / name
        fresh.mkdir(mode=0o755)
        fetch(fresh)
        # At once: whoever looks meanwhile finds all of it or nothing.
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        fresh.rename(FOLDER / name)
    if not stands():
        raise FaultToolError(f"{name} was fetched, and is not usable: look into .emulators/{name}")


def _fetch_pgbouncer(here: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise FaultToolError(
            "pgbouncer is fetched as a package of Debian or Ubuntu; here, install it as your "
            "system does, so that `pgbouncer` is found"
        )
    work = here.parent / "work"
    program = _unpacked("pgbouncer", work) / "usr" / "sbin" / "pgbouncer"
    shutil.copy(program, here / "pgbouncer")
    missing = _missing_libraries(program)
    for package in _packages_of_libraries() if missing else ():
        unpacked = _unpacked(package, work)
        for name in missing:
            for found in unpacked.rglob(name):
                shutil.copy(found, here / name)  # what a link names, under the link's name
    still = [name for name in missing if not (here / name).exists()]
    if still:
        raise FaultToolError(f"pgbouncer needs {', '.join(still)}, which no package of its holds")


def _unpacked(package: str, work: Path) -> Path:
    """Fetch a package and unpack it; nothing of it is run, and nothing configured."""
    folder = work / package
    folder.mkdir(parents=True)
    _run(["apt-get", "download", package], folder)
    (archive,) = folder.glob("*.deb")
    _run(["dpkg-deb", "-x", str(archive), str(folder / "x")], folder)
    return folder / "x"


def _missing_libraries(program: Path) -> list[str]:
    return re.findall(r"^\s*(\S+) => not found", _run(["ldd", str(program)], ROOT), re.MULTILINE)


def _packages_of_libraries() -> list[str]:
    said = _run(["apt-cache", "depends", "pgbouncer"], ROOT)
    return [name for name in re.findall(r"Depends: (lib\S+)", said) if name != "libc6"]


def _fetch_libfaketime(here: Path) -> None:
    _run(
        [
            sys.executable, "-I", "-m", "pip", "install", "--quiet", "--no-deps",
            "--require-hashes", "--only-binary", ":all:", "--target", str(here),
            "-r", str(PINS / "libfaketime.txt"),
        ],
        ROOT,
    )  # fmt: skip


def _run(command: Sequence[str], folder: Path) -> str:
    env = {**os.environ, "LC_ALL": "C", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
            env=env,
            check=False,
            timeout=_LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        raise FaultToolError(f"{' '.join(command[:3])} ... has not ended in time") from None
    if ended.returncode:
        tail = "\n".join(ended.stdout.splitlines()[-10:])
        raise FaultToolError(f"{' '.join(command[:3])} ... failed; its last lines:\n{tail}")
    return ended.stdout


def main(arguments: Sequence[str]) -> int:
    """Install what is named; return the exit code."""
    if len(arguments) < 2 or arguments[0] != "install":
        print(
            f"usage: python -m tools.fault_tools install {' | '.join(NAMES)} ...", file=sys.stderr
        )
        return 2
    try:
        for name in arguments[1:]:
            install(name)
    except (FaultToolError, OSError) as error:
        print(f"fault_tools: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
