"""Finds the app that `module:attribute` names, and says which part of it is wrong."""

from __future__ import annotations

import difflib
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from workhorse.domain.showing import shown
from workhorse.errors import ConfigurationError

if TYPE_CHECKING:
    from workhorse.app import Workhorse


def load_app(reference: str) -> Workhorse:
    """Import a module, from the working directory too, and return the app it holds.

    Args:
        reference: `module:attribute`; both may be dotted, e.g. `shop.jobs:app`.

    Raises:
        ConfigurationError: The text is of another form, there is no such module, it fails while it
            is imported, it has no such attribute, or that is no `Workhorse`.
    """
    from workhorse.app import Workhorse

    module_name, colon, path = reference.partition(":")
    names = [*module_name.split("."), *path.split(".")]
    if not colon or not all(name.isidentifier() for name in names):
        raise ConfigurationError(
            f"app {shown(reference)} is not of the form module:attribute, e.g. shop.jobs:app"
        )
    found: object = _import(module_name)
    said = module_name
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(
                f"app {shown(reference)}: {said} has no {name!r}{_close(found, name)}"
            )
        found = getattr(found, name)
        said = f"{said}.{name}"
    if not isinstance(found, Workhorse):
        raise ConfigurationError(
            f"app {shown(reference)} is a {type(found).__name__}, not a Workhorse{_apps_in(found)}"
        )
    return found


def _import(module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    missing = _missing_part(module_name)
    if missing is not None:
        raise ConfigurationError(
            f"app: there is no module {missing!r}, neither in {here} nor where Python looks"
        )
    try:
        return import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigurationError(
            f"app: the module {module_name} failed while it was imported: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:500]}{_place(error)}"
        ) from error


def _missing_part(module_name: str) -> str | None:
    """Return the first part of a dotted name that is no module; imports the packages before."""
    parts = module_name.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        try:
            if find_spec(name) is None:
                return name
        except ModuleNotFoundError as error:
            # What is missing may also be something that a package on the way imports.
            return name if error.name in (name, name.rpartition(".")[0]) else None
        except Exception:  # noqa: BLE001 - a package fails; importing the module tells how
            return None
    return None


def _place(error: BaseException) -> str:
    """Return where it failed: the last line below the working directory, else the last of all."""
    here = f"{Path.cwd()}/"
    places: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith("<") and name not in (__file__, _IMPORTLIB):
            places.append(f" ({name.removeprefix(here)}, line {trace.tb_lineno})")
        trace = trace.tb_next
    near = [place for place in places if not place.startswith(" (/")]
    return (near or places or [""])[-1]


_IMPORTLIB = sys.modules["importlib"].__file__


def _close(owner: object, name: str) -> str:
    known = [each for each in dir(owner) if not each.startswith("_")]
    close = difflib.get_close_matches(name, known, n=2)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _apps_in(found: object) -> str:
    from workhorse.app import Workhorse

    if not isinstance(found, ModuleType):
        return ""
    names = [name for name, value in vars(found).items() if isinstance(value, Workhorse)]
    return f"; that module holds {', '.join(names)}" if names else ""
