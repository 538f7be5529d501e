"""Environments for what is no dependency of the project: the raw loop and the peers.

Each is a folder in `.bench/`, made once from a file of pinned versions, and anew when that changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".bench"
_INSTALL_WITHIN_S = 300.0


class UnavailableError(Exception):
    """Something cannot be measured here; the message says why, in one line."""


def environment(name: str, requirements: Path, *, needs: tuple[int, int] = (3, 11)) -> Path:
    """Return the interpreter of an environment with these requirements, made where it is missing.

    Args:
        name: Its folder.
        requirements: A file of pinned versions.
        needs: The lowest Python that can hold them. This interpreter is taken where it is new
            enough, so that all are measured on the same one, else the newest that is found.

    Raises:
        UnavailableError: No Python is new enough, or the installation failed.
    """
    base = _interpreter(needs)
    folder = FOLDER / name
    stamp = folder / "made-from"
    made_from = f"{base}\n{hashlib.sha256(requirements.read_bytes()).hexdigest()}\n"
    python = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == made_from:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run(base, "-m", "venv", folder)
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--no-deps", "-r", requirements)  # fmt: skip
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"not installed: {_last_line(error.stderr)}") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"not installed within {_INSTALL_WITHIN_S:g} s") from error
    stamp.write_text(made_from)
    return python


def _run(*command: str | Path) -> None:
    subprocess.run(
        [str(word) for word in command],
        check=True,
        capture_output=True,
        text=True,
        timeout=_INSTALL_WITHIN_S,
    )


def _interpreter(needs: tuple[int, int]) -> Path:
    if sys.version_info[:2] >= needs:
        # The interpreter below the project's own environment: one made from an environment would
        # be tied to it.
        own = Path(sys.base_prefix) / "bin" / "python{}.{}".format(*sys.version_info[:2])
        if own.exists():
            return own
    found = {version: path for path in _candidates() if (version := python_version(path)) >= needs}
    if not found:
        raise UnavailableError("needs Python {}.{} or newer, which was not found".format(*needs))
    # The lowest that will do is the nearest to what the others run on.
    return found[min(found)]


def _candidates() -> Iterator[Path]:
    for minor in range(11, 16):
        if path := shutil.which(f"python3.{minor}"):
            yield Path(path)
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from versions.glob("*/bin/python3")
    yield Path(sys.executable)


def python_version(path: Path) -> tuple[int, int]:
    """Return e.g. (3, 12); (0, 0) for what does not run: a version manager's stand-in may not."""
    try:
        answer = subprocess.run(
            [path, "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"],
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    major, minor = answer.stdout.split()
    return (int(major), int(minor))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no output"])[-1][:300]
