"""The container image, as far as it can be looked at without a container engine.

What its files say is checked word by word; and the steps that they describe are done here, in a
fresh environment, whose worker then runs as an ordinary user on a file system that cannot be
written to.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.installations import CHOICE, NoServerError
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes, RunningProcess
from workhorse import probe
from workhorse.app import Workhorse
from workhorse.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "infra" / "image"
DOCKERFILES = [IMAGE / "Dockerfile", IMAGE / "app.Dockerfile"]
USER = 10001


# -- what the files say --------------------------------------------------------------------------


@dataclass
class Stage:
    """A `FROM` and what follows it."""

    base: str
    name: str
    steps: list[tuple[str, str]]

    def last(self, word: str) -> str | None:
        return next((rest for step, rest in reversed(self.steps) if step == word), None)

    def all(self, word: str) -> list[str]:
        return [rest for step, rest in self.steps if step == word]


def stages(text: str) -> list[Stage]:
    """Read a Dockerfile: instructions, without comments, with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found: list[Stage] = []
    arguments: dict[str, str] = {}
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        assert word.isupper(), line
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            for given, default in arguments.items():
                base = base.replace(f"${{{given}}}", default)
            found.append(Stage(base, name, []))
        elif not found:
            assert word == "ARG", line
            given, _, default = rest.partition("=")
            arguments[given] = default
        else:
            found[-1].steps.append((word, rest.strip()))
    return found


def _ids(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("path", DOCKERFILES, ids=_ids)
def test_the_last_stage_runs_as_a_numbered_user_who_is_not_root(path: Path) -> None:
    user = stages(path.read_text())[-1].last("USER")
    assert user is not None
    assert re.fullmatch(r"\d+:\d+", user), "ECS and Kubernetes want to see a number"
    assert user == f"{USER}:{USER}"


@pytest.mark.parametrize("path", DOCKERFILES, ids=_ids)
def test_bases_are_pinned_and_nothing_is_fetched_beside_packages(path: Path) -> None:
    for stage in stages(path.read_text()):
        _, _, tag = stage.base.partition(":")
        assert re.match(r"\d+\.\d+", tag), f"{stage.base} has no version"
        assert "latest" not in stage.base
        assert stage.all("ADD") == []
        assert not [step for step in stage.all("RUN") if re.search(r"curl|wget|https?://", step)]


@pytest.mark.parametrize("path", DOCKERFILES, ids=_ids)
def test_no_secret_has_a_place_in_it(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"(?i)password|secret|token|access_key|credential", text)


def test_what_it_copies_is_there_and_in_the_context() -> None:
    build, final = stages((IMAGE / "Dockerfile").read_text())
    for step in build.all("COPY"):
        *sources, _ = step.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert in_context(source), source
    assert final.all("COPY") == ["--from=build /opt/workhorse /opt/workhorse"]
    assert build.name == "build"


def in_context(path: str) -> bool:
    """Whether .dockerignore lets a path through: the last rule that fits it decides."""
    kept = True
    for rule in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = rule.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keep, pattern = pattern.startswith("!"), pattern.removeprefix("!")
        parts = Path(path).parts
        prefixes = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        fits = any(fnmatch.fnmatch(prefix, pattern) for prefix in prefixes)
        if fits or (pattern.startswith("**/") and pattern[3:] in parts):
            kept = keep
    return kept


def test_the_context_holds_nothing_else() -> None:
    for path in (".git/config", "tests/conftest.py", ".venv/bin/python", ".env", "infra/app.py"):
        assert not in_context(path), path
    assert not in_context("workhorse/__pycache__/app.pyc")
    assert in_context("workhorse/runtime/process/worker.py")


def test_processes_get_signals_and_are_asked_how_they_are() -> None:
    final = stages((IMAGE / "Dockerfile").read_text())[-1]
    entry, command = final.last("ENTRYPOINT"), final.last("CMD")
    assert entry is not None
    assert command is not None
    # The form of a list: a shell in between would keep the signal to itself.
    assert json.loads(entry) == ["workhorse"]
    assert json.loads(command) == ["worker"]
    assert final.last("STOPSIGNAL") == "SIGTERM"
    health = final.last("HEALTHCHECK")
    assert health is not None
    assert json.loads(health.partition("CMD ")[2]) == ["python", "-m", "workhorse.probe"]


def test_its_variables_are_settings_that_exist() -> None:
    environment = stages((IMAGE / "Dockerfile").read_text())[-1].last("ENV")
    assert environment is not None
    for name in re.findall(r"WORKHORSE_([A-Z_]+)=", environment):
        assert name.lower() in Settings.model_fields, name
    assert "PYTHONDONTWRITEBYTECODE=1" in environment


def test_the_locks_pin_everything_with_hashes() -> None:
    build = stages((IMAGE / "Dockerfile").read_text())[0]
    text = " ".join(build.all("RUN"))
    assert text.count("--require-hashes") == text.count("-r requirements/") == 2
    dev = _locked("dev")
    for name in ("image", "image-build"):
        found = _locked(name)
        # The versions that the tests run with; the extra `lean` brings what dev.txt has anyway.
        assert {name: dev.get(name) for name in found} == found
    assert "sqlalchemy" in _locked("image")
    assert "hatchling" in _locked("image-build")
    assert not {"pytest", "moto", "hatchling", "ruff"} & set(_locked("image"))


def _locked(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries = re.split(r"\n(?=[a-z0-9])", "\n" + text)
    found = {}
    for entry in entries[1:]:
        match = re.match(r"([a-z0-9._-]+)==([^ ;\\]+)", entry)
        assert match, entry[:80]
        assert "--hash=sha256:" in entry, match[1]
        found[match[1]] = match[2]
    return found


def test_the_version_of_the_tag_is_the_project_s() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version
    assert stages((IMAGE / "app.Dockerfile").read_text())[0].base == f"workhorse:{version[1]}"


# -- make image ----------------------------------------------------------------------------------


@pytest.fixture
def make_image(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs tools/image.sh where only stand-ins for engines are on the path."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "sed", "dirname"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)

    def run(**engines: bool) -> subprocess.CompletedProcess[str]:
        for name, answers in engines.items():
            stub = tools / name
            stub.write_text(
                "#!/bin/sh\n"
                f'if [ "$1" = build ]; then echo "{name} $*"; exit 0; fi\n'
                f"exit {0 if answers else 1}\n"
            )
            stub.chmod(0o755)
        return subprocess.run(
            [tools / "sh", ROOT / "tools" / "image.sh", "--pull"],
            env={"PATH": str(tools)}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def test_the_first_engine_that_answers_builds(
    make_image: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = make_image(docker=False, podman=True, buildah=True)
    assert done.returncode == 0
    assert re.fullmatch(
        r"podman build --file infra/image/Dockerfile --tag workhorse:\d\S+ --pull \.\n", done.stdout
    )


@pytest.mark.parametrize(
    ("engines", "line"),
    [
        ({}, "image: no container engine is installed; install docker, podman, finch or buildah"),
        ({"docker": False}, "image: docker is installed, but its daemon does not answer"),
    ],
    ids=["none", "no daemon"],
)
def test_without_an_engine_one_line_says_what_is_missing(
    make_image: Callable[..., subprocess.CompletedProcess[str]],
    engines: dict[str, bool],
    line: str,
) -> None:
    done = make_image(**engines)
    assert done.returncode == 1
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


# -- the same steps, here ------------------------------------------------------------------------

APP = """
import os
from workhorse import Workhorse

app = Workhorse()

def _writes(path):
    try:
        with open(path, "w"):
            return True
    except OSError:
        return False

@app.task("look", executor=os.environ.get("SHOP_EXECUTOR") or None)
def look() -> dict:
    return {"user": os.geteuid(), "writes": [p for p in ("/tmp/x", "x") if _writes(p)]}
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What /opt/workhorse is in the image; the packages beside Workhorse are this environment's."""
    folder = tmp_path_factory.mktemp("image")
    context, opt = folder / "context", folder / "opt"
    build = stages((IMAGE / "Dockerfile").read_text())[0]
    for step in build.all("COPY"):
        *sources, _ = step.split()
        for source in sources:
            to = context / source
            to.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, to)

    def run(*command: str | Path) -> None:
        done = subprocess.run(
            command, cwd=context, capture_output=True, text=True, check=False,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    run(sys.executable, "-m", "venv", "--without-pip", opt)
    python = opt / "bin" / "python"
    pip = [sys.executable, "-m", "pip"]
    run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", "dist", ".")
    (wheel,) = (context / "dist").glob("*.whl")
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", "--no-compile", wheel)
    run(python, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", opt / "lib")
    (site,) = (opt / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return opt


class Box:
    """Starts what is installed as an ordinary user, on a file system that is read-only."""

    # Every mount that could be written to, made read-only in a namespace of its own; then all
    # powers are given up, as in a container that has dropped them.
    LOCK = (
        "for place in / $(awk '$4 ~ /^rw/ && $3 ~ /^(tmpfs|ext4|xfs|overlay|btrfs)$/ "
        "{print $2}' /proc/mounts); do mount -o remount,bind,ro $place || exit 97; done; "
        "if touch /tmp/wh-box 2>/dev/null; then exit 97; fi; "
        'exec setpriv --inh-caps=-all --ambient-caps=-all --bounding-set=-all "$@"'
    )

    def __init__(self, processes: Processes, opt: Path, app: Path, env: dict[str, str]) -> None:
        self._processes = processes
        self._opt = opt
        self._app = app
        final = stages((IMAGE / "Dockerfile").read_text())[-1].last("ENV") or ""
        self.env = {
            **dict(pair.split("=", 1) for pair in final.split() if "=" in pair),
            "HOME": str(app),
            "PATH": f"{opt / 'bin'}:{os.environ['PATH']}",
            **env,
        }

    def start(self, *words: str | Path, **env: str) -> RunningProcess:
        return self._processes.start(
            "unshare", "--user", f"--map-user={USER}", f"--map-group={USER}", "--keep-caps",
            "--mount", "sh", "-c", self.LOCK, "sh", *words,
            env={**self.env, **env}, cwd=self._app,
        )  # fmt: skip

    def workhorse(self, *words: str, **env: str) -> RunningProcess:
        return self.start(self._opt / "bin" / "workhorse", *words, **env)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """By TCP: an ordinary user has no way to the socket in another's folder."""
    if os.environ.get(CHOICE) == "off":
        pytest.skip(f"PostgreSQL is left out by {CHOICE}=off; run them without that setting")
    try:
        server = PostgresServer(tcp=True)
    except NoServerError as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def box(processes: Processes, installed: Path, server: PostgresServer, tmp_path: Path) -> Box:
    if not shutil.which("unshare") or not shutil.which("setpriv"):
        pytest.skip("the programs unshare and setpriv are not installed; install util-linux")
    app = tmp_path / "app"
    app.mkdir()
    (app / "shop.py").write_text(APP)
    env = {
        "WORKHORSE_DATABASE_URL": server.url(server.databases.create()),
        "WORKHORSE_APP": "shop:app",
        "WORKHORSE_HEALTH_PORT": str(free_port()),
    }
    box = Box(processes, installed, app, env)
    if box.start("true").wait() != 0:
        pytest.skip("this system lets nobody make a file system read-only; allow user namespaces")
    assert box.workhorse("migrate").wait(within=60) == 0
    return box


@pytest.mark.parametrize("executor", ["", "process"])
def test_an_ordinary_user_runs_it_on_a_read_only_file_system(box: Box, executor: str) -> None:
    worker = box.workhorse("worker", SHOP_EXECUTOR=executor)
    worker.wait_for('"worker w-[0-9a-f]+: workhorse')  # as JSON, as the image says
    with Workhorse(database_url=box.env["WORKHORSE_DATABASE_URL"]) as app:
        task = app.task("look")(_nothing)
        assert task.enqueue().result(60) == {"user": USER, "writes": []}
    eventually(lambda: probe.main(["--ready"], box.env) == 0, within=30, every=0.1)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert probe.main([], box.env) == 1


def test_maintenance_and_migrations_need_nothing_to_write_to_either(box: Box) -> None:
    assert box.workhorse("maintain", "--once").wait(within=60) == 0
    maintenance = box.workhorse("maintain")
    eventually(lambda: probe.main(["--ready"], box.env) == 0, within=30, every=0.1)
    maintenance.send(signal.SIGTERM)
    assert maintenance.wait() == 0


def test_what_is_installed_is_compiled(installed: Path) -> None:
    (site,) = (installed / "lib").glob("python*/site-packages")
    sources = {path for path in site.rglob("*.py") if "versions" not in path.parts}
    assert len(sources) > 100
    assert all(
        list((path.parent / "__pycache__").glob(f"{path.stem}.cpython-*.pyc")) for path in sources
    )
    assert not (site / "tests").exists()
    assert not (site / "infra").exists()


def _nothing() -> dict[str, object]:
    """Stands for the task whose handler is the box's."""
    return {}
