"""Throw-away emulators of AWS, on loopback alone, gone with the process that started them.

    with emulator("ministack") as it:
        boto3.client("sqs", endpoint_url=it.url, region_name=it.region)

moto comes with the development environment. The others have environments of their own, which
`make emulators` installs, and a test that asks for one is left out unless WORKHORSE_TEST_EMULATORS
names it: `make test` installs nothing.
"""

from __future__ import annotations

import http.client
import inspect
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.eventually import eventually
from tests.support.folders import quick_root
from tests.support.guardian import guardian
from tests.support.processes import RunningProcess
from tests.support.sqs import SqsEndpoint, moto_command
from tools import emulators

CHOICE: Final = "WORKHORSE_TEST_EMULATORS"
MOTO: Final = "moto"
INSTALLED: Final = emulators.NAMES
MARKER: Final = "emulators"
LEFT_OUT: Final = f"emulators beside moto are left out; run them with `make emulators` ({CHOICE})"
free_port = emulators.free_port
_READY_WITHIN_S: Final = 120.0
_TRIES: Final = 3


@dataclass(frozen=True)
class Emulator:
    """An emulator that answers."""

    name: str
    url: str
    region: str
    account: str
    process: RunningProcess

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource, e.g. `arn("sqs", "workhorse-default")`."""
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"


def chosen() -> tuple[str, ...]:
    """Return the emulators that tests run against: moto, and what WORKHORSE_TEST_EMULATORS names.

    It holds names with commas between, or `all`. Where `moto` is not among them, moto is left out.
    """
    words = [word for word in os.environ.get(CHOICE, "").replace(" ", "").split(",") if word]
    if "all" in words:
        return (*INSTALLED, MOTO)
    unknown = set(words) - {*INSTALLED, MOTO}
    if unknown:
        raise ValueError(f"{CHOICE} names {', '.join(sorted(unknown))}, which is no emulator")
    return tuple(words) or (MOTO,)


def need(name: str) -> None:
    """Leave the test out where an emulator was not chosen; install it where it was."""
    if name not in (*INSTALLED, MOTO):
        raise ValueError(f"{name!r} is no emulator")
    if name not in chosen():
        pytest.skip(LEFT_OUT if name != MOTO else f"{CHOICE} leaves moto out")
    if name != MOTO:
        emulators.install(name)


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark the tests that run against emulators: some fixture, or they themselves, ask for one."""
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = item._fixtureinfo.name2fixturedefs.values()
            asking = [item.function, *(each.func for made in fixtures for each in made)]
            if any(_asks(function) for function in asking):
                item.add_marker(MARKER)


def _asks(function: Callable[..., object]) -> bool:
    inner = inspect.unwrap(function)
    code, names = getattr(inner, "__code__", None), getattr(inner, "__globals__", {})
    ours = [name for name, value in names.items() if value in (emulator, need, sqs_endpoint)]
    return code is not None and any(name in code.co_names for name in ours)


def others_left_out(test: str) -> int:
    """Return how many runs of a test are left out since moto alone was chosen."""
    return len(INSTALLED) if chosen() == (MOTO,) and MOTO in test else 0


@contextmanager
def emulator(
    name: str,
    *,
    services: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    python_path: Sequence[str | Path] = (),
) -> Iterator[Emulator]:
    """Run an emulator for the time of the context; leave the test out where it was not chosen.

    Args:
        name: `localstack`, `ministack`, `fauxqs` or `moto`.
        services: The services that are wanted of LocalStack; SQS alone by default. The others have
            what they have, which is all of it.
        env: Added to its environment, and so to that of functions that MiniStack runs.
        python_path: Where functions that MiniStack runs find packages, beside those in their zip:
            `our_packages()` is what these tests see.
    """
    need(name)
    folder = Path(tempfile.mkdtemp(prefix=f"wh-{name}-", dir=quick_root()))
    guardian().watch_folder(folder)
    try:
        for left in reversed(range(_TRIES)):
            process, started = _start(name, folder, services, env or {}, python_path)
            with process:
                # Whoever took the port between our look and its start has it: another one then.
                if not _ready(process, started.url + started.health) and left:
                    continue
                yield Emulator(name, started.url, emulators.REGION, started.account, process)
                return
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        guardian().release_folder(folder)


def our_packages() -> list[Path]:
    """Return where the project and the packages that it needs lie, for `python_path`."""
    return [emulators.ROOT, *(Path(entry) for entry in sys.path if entry.endswith("site-packages"))]


@contextmanager
def sqs_endpoint(name: str) -> Iterator[SqsEndpoint]:
    """Run an emulator for the time of the context, and return its SQS with a client of ours."""
    with emulator(name) as it:
        endpoint = SqsEndpoint(it.url)
        try:
            yield endpoint
        finally:
            endpoint.close()


@dataclass(frozen=True)
class _Started:
    url: str
    health: str
    account: str


def _start(
    name: str,
    folder: Path,
    services: Sequence[str],
    env: Mapping[str, str],
    python_path: Sequence[str | Path],
) -> tuple[RunningProcess, _Started]:
    if name == MOTO:
        process = RunningProcess(moto_command(), env=env, cwd=folder)
        port = int(process.wait_for(r"^port (\d+)$", within=_READY_WITHIN_S)[1])
        return process, _Started(f"http://127.0.0.1:{port}", "/moto-api/", "123456789012")
    port = emulators.free_port()
    launch = emulators.launch(
        name,
        port,
        folder,
        services=services,
        python_path=os.pathsep.join(str(entry) for entry in python_path),
    )
    whole = dict.fromkeys(os.environ) | launch.env | dict(env)
    process = RunningProcess(launch.command, env=whole, cwd=folder)
    return process, _Started(f"http://127.0.0.1:{port}", launch.health, launch.account)


def _ready(process: RunningProcess, url: str) -> bool:
    """Wait until it answers; return False where it ended because another has its port."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def answers() -> str:
        if process.exit_code is not None:
            return "ended"
        with suppress(OSError, http.client.HTTPException), opener.open(url, timeout=5) as answer:
            return "ready" if answer.status == 200 else ""
        return ""

    try:
        seen = eventually(answers, within=_READY_WITHIN_S, every=0.05, what=f"{url} answers")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{process.output()[-4000:]}") from None
    if seen == "ended" and "in use" not in process.output():
        raise RuntimeError(f"{process} has ended:\n{process.output()[-4000:]}")
    return seen == "ready"
