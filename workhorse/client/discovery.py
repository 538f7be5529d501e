"""Lanes are found by name, through the entry-point group `workhorse.lanes`; so are secrets."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from workhorse.errors import ConfigurationError
from workhorse.ports import Lane, LaneContext, LaneFactory, SecretReader, SecretReaderFactory
from workhorse.settings import Settings

GROUP: Final = "workhorse.lanes"
SECRETS: Final = "workhorse.secrets"


def lane_names() -> list[str]:
    """Return the names of the lanes that are installed, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def open_lane(name: str, context: LaneContext) -> Lane:
    """Load and open the lane of that name; no other lane is imported.

    Raises:
        ConfigurationError: No such lane is installed, it cannot be loaded, or a setting that it
            needs is missing or wrong.
    """
    factory = _load(_entry(name))
    lane = factory.open(context)
    if not isinstance(lane, Lane):
        raise ConfigurationError(
            f"lane {name!r}: {type(lane).__name__} is no lane; workhorse.ports.Lane says what one "
            "offers"
        )
    return lane


def open_secrets(name: str, settings: Settings) -> SecretReader:
    """Load and open what reads secrets of that kind, e.g. `aws`.

    Raises:
        ConfigurationError: Nothing that is installed does, or not exactly one.
    """
    found = {entry.value: entry for entry in entry_points(group=SECRETS, name=name)}
    if len(found) != 1:
        raise ConfigurationError(
            f"{len(found)} installed packages read secrets of {name!r} ({SECRETS!r}); there has "
            "to be one"
        )
    factory: SecretReaderFactory = next(iter(found.values())).load()
    return factory.open(settings)


def _entry(name: str) -> EntryPoint:
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
    if not found:
        known = lane_names()
        raise ConfigurationError(
            f"lane {name!r} is not installed; "
            + (f"these are: {', '.join(known)}" if known else f"no package offers {GROUP!r}")
        )
    if len(found) > 1:
        raise ConfigurationError(
            f"lane {name!r} is offered by several packages ({', '.join(sorted(found))}); "
            "uninstall all but one"
        )
    return next(iter(found.values()))


def _load(entry: EntryPoint) -> LaneFactory:
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"lane {entry.name!r} cannot be loaded from {entry.value}: {error}"
        ) from error
    if not callable(getattr(loaded, "open", None)):
        raise ConfigurationError(
            f"lane {entry.name!r}: {entry.value} has no class method open(context)"
        )
    return loaded  # type: ignore[no-any-return]
