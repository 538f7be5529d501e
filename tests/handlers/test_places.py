"""Where handlers stand: what another process finds, and what is refused before it looks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Processes
from workhorse.errors import ConfigurationError
from workhorse.handlers.places import Place, find, place_of
from workhorse.handlers.registry import TaskRegistry

ROOT = Path(__file__).parents[2]

registry = TaskRegistry()


@registry.task("decorated", executor="process")
def decorated() -> None: ...


def _plain() -> None: ...


named_elsewhere = registry.task("named elsewhere", executor="process")(_plain)


class Holder:
    @registry.task("in a class", executor="process")
    @staticmethod
    def inside() -> None: ...


def _hidden() -> None: ...


kept = [registry.task("in a list", executor="process")(_hidden)]


def _shared() -> None: ...


first = registry.task("made first", executor="process")(_shared)
second = registry.task("made second", executor="process")(_shared)


@pytest.mark.parametrize(
    ("name", "qualname"),
    [
        ("decorated", "decorated"),
        ("named elsewhere", "_plain"),
        ("in a class", "Holder.inside"),
        ("made first", "_shared"),
        ("made second", "_shared"),
    ],
)
def test_a_task_is_found_where_it_stands(name: str, qualname: str) -> None:
    task = registry.require(name)

    place = place_of(task)

    assert place == Place(module=__name__, qualname=qualname, task=name)
    assert find(place) is task


def test_one_that_its_module_does_not_hold_is_refused_when_a_worker_starts() -> None:
    with pytest.raises(ConfigurationError, match="would not find its handler .*_hidden") as refused:
        registry.require("in a list").check()
    assert "leave `executor` out" in str(refused.value)


def test_one_that_is_not_there_any_more_is_refused_by_the_process() -> None:
    with pytest.raises(ConfigurationError, match="does not find it as"):
        find(Place(module=__name__, qualname="gone", task="gone"))


class Callable:
    def __call__(self) -> None: ...


def _with(number: int) -> None: ...


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (lambda: None, "is no part of its module"),
        (partial(_with, 1), "has no name of its own"),
        (Callable(), "has no name of its own"),
    ],
    ids=["lambda", "partial", "object"],
)
def test_what_has_no_name_is_refused_where_it_is_registered(handler: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        TaskRegistry().task("t", executor="process")(handler)


def test_what_stands_in_a_function_is_refused_where_it_is_registered() -> None:
    def inner() -> None: ...

    with pytest.raises(ConfigurationError, match="is no part of its module") as refused:
        TaskRegistry().task("t", executor="process")(inner)
    assert "test_places.py" in str(refused.value)


# -- programs ------------------------------------------------------------------------------------

PROGRAM = """
import os
from workhorse import Workhorse

app = Workhorse(database_url="sqlite:///runs.sqlite3", lane="memory", processes=1)
print("imported", __name__)

@app.task("where", executor="process")
def where() -> list:
    return [os.getpid(), __name__]

def main():
    app.migrate()
    pid, name = where.run_now().result()
    assert pid != os.getpid()
    print("ran in", name)
    app.close()
"""
GUARDED = f"{PROGRAM}\nif __name__ == '__main__':\n    main()\n"


def python(processes: Processes, folder: Path, *arguments: str) -> str:
    process = processes.python(*arguments, cwd=folder, env={"PYTHONPATH": str(ROOT)})
    process.wait()
    return process.output()


def test_a_program_is_imported_under_its_modules_name(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(GUARDED)

    assert python(processes, tmp_path, "shop.py").split("\n")[:3] == [
        "imported __main__", "imported shop", "ran in shop",
    ]  # fmt: skip
    assert "ran in shop" in python(processes, tmp_path, "-m", "shop")


def test_a_program_that_no_import_finds_is_loaded_from_its_file(
    processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "json").write_text(GUARDED)  # and no other module of that name is taken for it

    assert "ran in __workhorse_main__" in python(processes, tmp_path, "json")


@pytest.mark.parametrize("how", [("shop.py",), ("-m", "shop")], ids=["by path", "by name"])
def test_a_program_whose_main_part_would_run_again_is_refused(
    processes: Processes, tmp_path: Path, how: tuple[str, ...]
) -> None:
    (tmp_path / "shop.py").write_text(f"{PROGRAM}\nmain()\n")

    output = python(processes, tmp_path, *how)

    assert "put the program's main part under `if __name__ == '__main__':`" in output
    assert output.count("imported") == 1


def test_a_program_without_a_file_is_refused(processes: Processes, tmp_path: Path) -> None:
    output = python(processes, tmp_path, "-c", f"{PROGRAM}\nmain()\n")

    assert "or the handler into a module of its own" in output


def test_a_module_that_starts_a_worker_does_not_start_one_in_each_process(
    processes: Processes, tmp_path: Path
) -> None:
    """It is imported by its name, so that no guard is looked for."""
    (tmp_path / "shop.py").write_text(f"{PROGRAM}\napp.migrate()\napp.worker().start()\n")
    (tmp_path / "program.py").write_text(
        "import shop\n"
        "from workhorse.errors import RunFailedError\n"
        "from workhorse import RetryPolicy\n"
        "try:\n"
        "    shop.where.enqueue(retry=RetryPolicy(max_attempts=1)).result(30)\n"
        "except RunFailedError as error:\n"
        "    print(error)\n"
    )

    output = python(processes, tmp_path, "program.py")

    assert "a process of handlers imports its module, which starts a worker" in output
    assert output.count("imported shop") < 5
