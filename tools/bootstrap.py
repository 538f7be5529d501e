"""Make .venv ready: the second half of tools/setup.sh. Needs nothing but the standard library.

What stands is recognised by a stamp: the hash of the lock file, pyproject.toml, this program and
the folder's path (an environment cannot be moved). The stamp is written last, so a set-up that was
interrupted is done again. Several set-ups of one folder take turns.

`bootstrap.py --ready` exits with 0 if .venv is up to date and 1 if not, and does nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "stamp"
LOG = VENV / "setup.log"
LOCK_FILE = ROOT / "requirements" / "dev.txt"
STILL_AT_WORK_S = 30


class SetupError(Exception):
    """The set-up cannot go on; the message is for the person who started it."""


def digest_of(*parts: bytes) -> str:
    """Hash parts so that moving a byte from one to the next makes a difference."""
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def wanted() -> tuple[str, str]:
    """Return what the packages depend on, and what the project's own installation depends on."""
    packages = digest_of(LOCK_FILE.read_bytes(), Path(__file__).read_bytes(), os.fsencode(ROOT))
    return packages, digest_of((ROOT / "pyproject.toml").read_bytes())


def found() -> list[str]:
    """Return the stamp's lines: packages, project, the interpreter's version and folder."""
    try:
        return STAMP.read_text().splitlines()
    except OSError:
        return []


def interpreter() -> list[str]:
    """Return which interpreter runs this, as the stamp keeps it."""
    return [platform.python_version(), os.path.realpath(sys.base_prefix)]


class Progress:
    """One line that tells how far the set-up is; where it cannot be rewritten, now and then one."""

    def __init__(self) -> None:
        self.started = self.told = time.monotonic()
        self.on_terminal = sys.stderr.isatty()
        self.what = ""

    def begin(self, what: str) -> None:
        """Say what begins now."""
        self.what = what
        self._write(what)

    def update(self, detail: str) -> None:
        """Say how far it is; seldom, where each time is a line of its own."""
        now = time.monotonic()
        if self.on_terminal:
            self._write(f"{self.what}: {detail}")
        elif now - self.told >= STILL_AT_WORK_S:
            self._write(f"{self.what}: {detail} after {now - self.started:.0f} s")

    def end(self, what: str) -> None:
        """Say that it is over."""
        self._write(f"{what} ({time.monotonic() - self.started:.0f} s)")
        if self.on_terminal:
            print(file=sys.stderr)

    def _write(self, text: str) -> None:
        self.told = time.monotonic()
        line = f"setup: {text}"
        if self.on_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{line[:width]}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def run(command: list[str], lock: int, on_line: Callable[[str], None] = lambda line: None) -> None:
    """Run a command with its output in the log.

    It inherits the lock: should this process be killed, the next set-up waits until the command,
    which still writes to .venv, has ended too.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONHOME", "PYTHONPATH", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")
    }
    environment.setdefault("PIP_DEFAULT_TIMEOUT", "60")
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    tail: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=ROOT,
        env=environment,
        pass_fds=(lock,),
    ) as process:
        VENV.mkdir(exist_ok=True)
        with LOG.open("a") as log:
            for line in process.stdout or ():
                log.write(line)
                on_line(line)
                if not line.startswith("WARNING: "):
                    tail = [*tail[-14:], line]
    if process.returncode:
        raise SetupError(
            f"failed; the last lines of {' '.join(command[:5])} ... say why (all: {LOG}):\n"
            + "".join(tail)
        )


def install_packages(lock: int, progress: Progress) -> None:
    """Make the environment anew, with what the lock file names and nothing else."""
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    run([sys.executable, "-I", "-m", "venv", str(VENV)], lock)
    total = len(re.findall(r"^[a-z0-9].*==", LOCK_FILE.read_text(), re.MULTILINE))
    seen = 0

    def tell(line: str) -> None:
        nonlocal seen
        name = re.match(r"Collecting ([\w.-]+)", line)
        if name:
            seen += 1
            progress.update(f"{seen} of {total}, {name[1]}")
        elif line.startswith("Installing collected"):
            progress.update("writing them to disk")

    # Only wheels, all named by the lock file: nothing is built, nothing is resolved again.
    locked = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "-r", str(LOCK_FILE)]
    run([*pip("install"), "--progress-bar", "off", *locked], lock, tell)


def install_project(lock: int) -> None:
    """Install the project itself so that it is used where it lies."""
    run([*pip("install"), "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], lock)


def pip(command: str) -> list[str]:
    """Return the start of a pip command line for .venv."""
    return [str(PYTHON), "-I", "-m", "pip", command]


def set_up() -> None:
    """Bring .venv up to date, whatever state it is in."""
    packages, project = wanted()
    try:
        # Not closed on purpose: the lock goes with the last process that inherited it.
        lock = os.open(ROOT / ".setup.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise SetupError(f"this folder cannot be written to: {error}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("setup: another set-up of this folder is under way; waiting", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)

    stands = found()
    if stands == [packages, project, *interpreter()] and PYTHON.exists():
        return
    STAMP.unlink(missing_ok=True)
    progress = Progress()
    progress.begin(f"Python {interpreter()[0]}, packages into .venv")
    if stands[:1] != [packages] or stands[2:] != interpreter() or not PYTHON.exists():
        install_packages(lock, progress)
    install_project(lock)
    fresh = STAMP.with_name("stamp.new")
    fresh.write_text("\n".join([packages, project, *interpreter()]) + "\n")
    fresh.replace(STAMP)
    progress.end(f"Python {interpreter()[0]}, .venv is ready")


def main(arguments: list[str]) -> int:
    """Do what was asked; return the exit code."""
    if arguments == ["--ready"]:
        here = Path(sys.prefix).resolve() == VENV
        return 0 if here and found()[:2] == list(wanted()) else 1
    try:
        set_up()
    except SetupError as error:
        print(f"\nsetup: {error}" if sys.stderr.isatty() else f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: stopped; the next start begins again", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
