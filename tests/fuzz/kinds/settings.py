"""Settings, as arguments and as variables of the environment: named, and never shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from tests.fuzz.evil import HUGE, OBJECTS, SECRET, TEXTS, json_values, just, objects, or_evil, texts
from tests.fuzz.judging import refusal_of
from tests.fuzz.kind import Check, Kind
from tests.fuzz.source import Draw, Source
from workhorse.app import SettingsArguments, Workhorse
from workhorse.settings import Settings, load_settings
from workhorse.store.base.connecting import parse_url

ARGUMENTS: Final = tuple(SettingsArguments.__annotations__)
VARIABLES: Final = (
    *(f"WORKHORSE_{name.upper()}" for name in (*ARGUMENTS, "app", "lane")),
    "ECS_AGENT_URI",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
)

_GOOD: Final[dict[str, Draw]] = {
    "database_url": just(
        f"postgresql://user:{SECRET}@localhost/db", f"postgresql://user:{SECRET}@[::1/db",
        f"mysql://user:{SECRET}@host/db", f"postgresql://user:{SECRET}@host:port/db",
        f"postgresql+asyncpg://user:{SECRET}@host/db", f"sqlite:///x?{SECRET}=1", "sqlite://", "sqlite:///\0",
        f"sqlite:///{'x' * 5_000}", f"://{SECRET}", f"{SECRET}", f"postgresql://h/d?password={SECRET}&host=a",
        f"postgresql://user:{SECRET}@host:99999999/db", f"postgresql://u%zz:{SECRET}@h/%00",
    ),
    "listen_url": just(f"postgresql://user:{SECRET}@localhost/db"),
    "schema": just("workhorse"),
    "environment": just("test", ""),
    "queues": just("a,b", "a", ""),
    "sqs_queue_urls": just({"a": "https://sqs.eu-west-1.amazonaws.com/1/a"}),
    "lane": just("polling", "memory", "pigeon", "sqs"),
    "log_level": just("debug", "INFO"),
    "metrics": just("off", "emf"),
}  # fmt: skip


def _arguments(source: Source) -> dict[str, Any]:
    chosen = [source.pick(ARGUMENTS) for _ in range(1 + source.below(3))]
    good = {name: or_evil(_GOOD.get(name, just(None, 1, "1", True))) for name in chosen}
    if source.maybe(10):
        good[source.pick(["nonsense", "model_config", "database-url", ""])] = objects
    return {name: draw(source) for name, draw in good.items()}


def _variables(source: Source) -> dict[str, str]:
    def text(s: Source) -> str:
        return s.one(texts, lambda s: texts(s, 300), lambda s: str(s.one(*_GOOD.values())))  # type: ignore[no-any-return]

    found = {source.pick(VARIABLES): text(source) for _ in range(1 + source.below(3))}
    if source.maybe(3):
        found["WORKHORSE_SQS_QUEUE_URLS"] = source.one(texts, _json)
    # What a process cannot be given at all.
    return {name: value for name, value in found.items() if _can_stand(value)}


def _json(source: Source) -> str:
    import json

    return json.dumps(json_values(source))


def _can_stand(value: str) -> bool:
    if "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def _use(settings: Settings) -> None:
    """Look at what was taken, as an app does."""
    assert SECRET not in f"{settings.database_url!r} {settings.listen_url!r}"
    parse_url(settings.database_url.get_secret_value())
    assert settings.scoped_schema.isascii()
    assert isinstance(settings.scoped_prefix, str)


@contextmanager
def _given() -> Iterator[Check]:
    def check(given: dict[str, Any]) -> bool:
        def load() -> None:
            _use(load_settings(**given))
            with Workhorse(**given) as app:
                app.maintenance  # noqa: B018 - only what makes no connection
                repr(app)

        return refusal_of(load, names=not _holds_url(given)) is not None

    with mock.patch.dict(os.environ, clear=False):
        yield check


@contextmanager
def _said() -> Iterator[Check]:
    def check(given: dict[str, str]) -> bool:
        with mock.patch.dict(os.environ, given):
            names = any(SECRET in given.get(f"WORKHORSE_{name}", "") for name in _NAMES)
            return refusal_of(lambda: _use(load_settings()), names=names) is not None

    yield check


_NAMES: Final = ("SCHEMA", "ENVIRONMENT", "QUEUES", "LANE", "SQS_QUEUE_URLS")
"""What is refused as a name is shown as one."""


def _holds_url(given: dict[str, Any]) -> bool:
    return any(name in ("database_url", "listen_url") for name in given)


KINDS: Final = (
    Kind(
        name="settings",
        share=4_000,
        draw=_arguments,
        corpus=[{name: each} for name in ARGUMENTS for each in (*OBJECTS[::3], *HUGE)],
        rig=_given,
    ),
    Kind(
        name="environment",
        share=4_000,
        draw=_variables,
        corpus=[{name: each} for name in VARIABLES for each in TEXTS if _can_stand(each)],
        rig=_said,
    ),
)
