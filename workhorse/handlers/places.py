"""Where a handler stands, so that another process finds it: its module and its name there.

Source: docs/processes.md; docs/adr/0022-process-executor.md
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from workhorse.errors import ConfigurationError
from workhorse.handlers.signatures import Signature
from workhorse.handlers.tasks import Task

_PROGRAM: Final = "__workhorse_main__"
_ADVICE: Final = "define it at the top of a module, or leave `executor` out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a task stands.

    `qualname` leads from its module to the handler, or to the task that a decorator put in its
    place. `file` is that of a program that was started by its path, which no import finds.
    """

    module: str
    qualname: str
    task: str
    file: str | None = None


def check_named(signature: Signature) -> None:
    """Refuse a handler that no other process can find, as early as that can be said.

    Raises:
        ConfigurationError: It has no name of its own, or stands in a function.
    """
    name = getattr(signature.handler, "__qualname__", None)
    if name is None or "<" in name:
        raise ConfigurationError(
            f"handler {signature.where} cannot be found by another process: it "
            + ("has no name of its own" if name is None else "is no part of its module")
            + f"; {_ADVICE}"
        )


def place_of(task: Task[Any, Any]) -> Place:
    """Return where a task stands.

    Raises:
        ConfigurationError: Another process would not find it, or must not: a program whose main
            part is not guarded would run again in it.
    """
    if _importing:
        raise ConfigurationError(
            f"task '{task.name}': a process of handlers imports its module, which starts a worker; "
            "have that started under `if __name__ == '__main__':`"
        )
    module_name = getattr(task.handler, "__module__", None) or "?"
    qualname = getattr(task.handler, "__qualname__", None) or "?"
    module = sys.modules.get(module_name)
    if module is None or _look(module, qualname, task.name) is not task:
        raise ConfigurationError(
            f"task '{task.name}': another process would not find its handler {task.where}, for "
            f"{module_name}.{qualname} is something else there; {_ADVICE}"
        )
    if module_name != "__main__":
        return Place(module=module_name, qualname=qualname, task=task.name)
    return _in_program(task, module, qualname)


def find(place: Place) -> Task[Any, Any]:
    """Import a task's module and return the task.

    Raises:
        ConfigurationError: It is not there.
        BaseException: Whatever the module raises while it is imported.
    """
    with _imports():
        module = import_module(place.module) if place.file is None else _program(place.file)
    task = _look(module, place.qualname, place.task)
    if task is None:
        raise ConfigurationError(
            f"task '{place.task}': this process does not find it as {place.module}."
            f"{place.qualname}, where the worker has it; its module must make the same tasks each "
            "time it is imported"
        )
    return task


def _look(module: ModuleType, qualname: str, name: str) -> Task[Any, Any] | None:
    found: object = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Task) and found.name == name:
        return found
    # Not decorated where it is defined: `report = app.task("report")(build)`.
    for value in vars(module).values():
        if isinstance(value, Task) and value.name == name:
            return value
    return None


# -- the program itself --------------------------------------------------------------------------


def _in_program(task: Task[Any, Any], main: ModuleType, qualname: str) -> Place:
    path = getattr(main, "__file__", None)
    if path is None or not _is_guarded(path):
        raise ConfigurationError(
            f"task '{task.name}': its handler {task.where} stands in the program itself, which "
            "another process has to import without running it; put the program's main part under "
            "`if __name__ == '__main__':`, or the handler into a module of its own"
        )
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m module
        return Place(module=spec.name, qualname=qualname, task=task.name)
    file = str(Path(path).resolve())
    return Place(module=Path(path).stem, qualname=qualname, task=task.name, file=file)


def _is_guarded(path: str) -> bool:
    try:
        body = ast.parse(Path(path).read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return False
    return any(
        isinstance(part, ast.Name) and part.id == "__name__"
        for statement in body
        if isinstance(statement, ast.If)
        for part in ast.walk(statement.test)
    )


def _program(file: str) -> ModuleType:
    """Import a program by its path, under the name by which others would import it, if any."""
    stem = Path(file).stem
    if stem.isidentifier():
        spec = find_spec(stem)
        if (
            spec is not None
            and spec.origin is not None
            and Path(spec.origin).resolve() == Path(file)
        ):
            return import_module(stem)
    if _PROGRAM not in sys.modules:
        spec = spec_from_loader(_PROGRAM, SourceFileLoader(_PROGRAM, file))
        assert spec is not None  # noqa: S101 - that loader has always one
        module = module_from_spec(spec)
        sys.modules[_PROGRAM] = module
        try:
            SourceFileLoader(_PROGRAM, file).exec_module(module)
        except BaseException:
            del sys.modules[_PROGRAM]
            raise
    return sys.modules[_PROGRAM]


_importing: Final[list[None]] = []


@contextmanager
def _imports() -> Iterator[None]:
    _importing.append(None)
    try:
        yield
    finally:
        _importing.pop()
