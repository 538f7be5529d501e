"""Settings: arguments of `Workhorse(...)`, else WORKHORSE_* in the environment, else defaults.

This is the only module that reads the environment. (AWS credentials, profiles and AWS_* endpoints
are boto3's to read, as any boto3 user expects.) What an operator says on the command line stands
above all three: an app that names its database in code can still be pointed elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from workhorse.domain.names import check_environment, check_queue, check_schema
from workhorse.errors import ConfigurationError


class Settings(BaseSettings):
    """What a process is told from outside. Each field is read from WORKHORSE_<FIELD>."""

    model_config = SettingsConfigDict(
        env_prefix="WORKHORSE_", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    database_url: SecretStr = SecretStr("sqlite:///workhorse.sqlite3")
    """`postgresql://user:password@host/db` or `sqlite:///path`."""
    database_secret: str | None = None
    """ARN or name of a secret of AWS Secrets Manager, JSON with `username` and `password`, for a
    PostgreSQL URL without them. It is read again when the database refuses what it held."""
    schema_name: str = Field(default="workhorse", validation_alias="WORKHORSE_SCHEMA")
    """The PostgreSQL schema of the tables; the environment is added behind it."""
    environment: str = ""
    """Keeps several systems apart: scopes schema, queue names, logs and metrics."""
    pooler: bool = False
    """That the database is behind a pooler in transaction mode, for sure; else it is found out."""
    lane: str = "polling"
    """The way wakeups travel, by its entry-point name: `sqs`, `notify`, `polling`, `memory`."""
    listen_url: SecretStr | None = None
    """Lane `notify`: the database's own address, where `database_url` is that of a pooler."""
    queues: Annotated[tuple[str, ...], NoDecode] = ("default",)
    """The queues that `workhorse worker` serves, with commas between."""

    lease_seconds: float = Field(default=30.0, ge=0.5, le=3600)
    concurrency: int = Field(default=10, ge=1, le=1000)
    processes: int | None = Field(default=None, ge=1, le=1000)
    """The most processes for tasks with `executor="process"`; none is one for each core."""
    poll_ms: int = Field(default=50, ge=1, le=60_000)
    drain_seconds: float = Field(default=25.0, ge=0, le=3600)
    hint_stride: int = Field(default=10, ge=1, le=1000)
    """Bulk enqueue sends one wakeup per this many runs: 10 where long-running workers serve a
    queue, 1 where only Lambda does."""
    share_commits: bool = False
    """Whether enqueues of callers at once (threads, asyncio tasks) share a commit and a send."""
    health_port: int | None = Field(default=None, ge=0, le=65535)
    """Where `/livez`, `/readyz` and `/metrics` answer; 0 picks a free port, none is off."""
    health_host: str = "127.0.0.1"
    build: str = Field(default="", max_length=100, pattern=r"^[A-Za-z0-9._+:-]*$")
    """What this process was built from: a number or a version that rises with each deployment.
    Shown by `workhorse processes`; see `newest_build_only`."""
    newest_build_only: bool = False
    """Whether a worker claims nothing new while a worker of a newer build is alive."""
    metrics: str = Field(default="off", pattern="^(off|emf)$")
    """`emf`: maintenance writes the system's measures to standard output once a minute, in
    CloudWatch's embedded metric format, which CloudWatch Logs turns into metrics by itself."""
    metrics_namespace: str = Field(default="Workhorse", pattern=r"^[A-Za-z0-9._/#:-]{1,255}$")
    ecs_agent_uri: str | None = Field(default=None, validation_alias="ECS_AGENT_URI")
    """Where the ECS agent answers its task; ECS sets it. There a busy worker's task is protected
    from being scaled in."""
    min_time_left_seconds: float = Field(default=15.0, ge=1, le=900)
    """On Lambda: a run is claimed only while the invocation has this much time left, or what its
    task says."""
    function_timeout_seconds: float | None = Field(default=None, ge=1, le=900)
    """The time-out of the Lambda functions that serve the queues, for `workhorse doctor`: a queue's
    visibility time-out should be six times as long."""
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR|CRITICAL)$")
    log_format: str = Field(default="text", pattern="^(text|json)$")
    """How `workhorse worker` and `workhorse maintain` write their log to standard error."""
    app: str | None = None
    """`module:attribute` of the app that the command line works for."""

    aws_endpoint_url: str | None = None
    aws_region: str | None = Field(
        default=None,
        validation_alias=AliasChoices("WORKHORSE_AWS_REGION", "AWS_DEFAULT_REGION", "AWS_REGION"),
    )
    """Else AWS_DEFAULT_REGION, as in boto3; AWS_REGION, as in other SDKs, which AWS sets in
    containers; or the profile's."""
    sqs_queue_prefix: str = "workhorse-"
    sqs_queue_urls: dict[str, str] = Field(default_factory=dict)
    """Queue name to the URL, ARN or name of its SQS queue, where it is not prefix + name."""
    sqs_fifo: bool = False
    """Whether queue names stand for FIFO queues (`.fifo` is put behind)."""
    sqs_client: str = Field(default="auto", pattern="^(auto|boto3|aioboto3|lean)$")
    """Which client receives, and sends for async producers; auto takes aioboto3 where installed.
    `lean` makes all calls over aiohttp, for a fraction of the CPU."""

    @field_validator("queues", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("database_secret", "aws_region", mode="before")
    @classmethod
    def _none_of_empty(cls, value: object) -> object:
        return value or None  # templates of tasks and functions set what is not known to nothing

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("queues")
    @classmethod
    def _queues(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(check_queue(name) for name in value))

    @field_validator("environment")
    @classmethod
    def _environment(cls, value: str) -> str:
        return check_environment(value)

    @field_validator("schema_name")
    @classmethod
    def _schema(cls, value: str) -> str:
        return check_schema(value)

    @property
    def scoped_schema(self) -> str:
        """The PostgreSQL schema, with the environment."""
        return f"{self.schema_name}_{self.environment}" if self.environment else self.schema_name

    @property
    def scoped_prefix(self) -> str:
        """What stands before a queue's name at the broker."""
        environment = f"{self.environment}-" if self.environment else ""
        return f"{self.sqs_queue_prefix}{environment}"


_ALIASES = {
    "schema": "WORKHORSE_SCHEMA",  # a field cannot be called so: pydantic's own method is
    "ecs_agent_uri": "ECS_AGENT_URI",
    "aws_region": "WORKHORSE_AWS_REGION",
}
_overrides: dict[str, Any] = {}
_told: set[str] = set()
_commanded = False
"""Whether the command line is at work, which tells of doubts once its log is set up."""
_OWN_PLACE = frozenset({"polling", "memory"})
"""Lanes that need no more than one machine; with the others more of them is meant."""


class Doubt(NamedTuple):
    """What is allowed, and probably a mistake."""

    message: str
    advice: str


@contextmanager
def overriding(given: Mapping[str, Any]) -> Iterator[None]:
    """Let settings, by name, stand above arguments and environment in this process meanwhile."""
    global _commanded
    before, commanded = dict(_overrides), _commanded
    _overrides.update(given)
    _commanded = True
    try:
        yield
    finally:
        _overrides.clear()
        _overrides.update(before)
        _commanded = commanded


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a child that must not reach anybody's real systems.

    Variables of Workhorse and of AWS are left out; then the changes are made.
    """
    kept = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251 - this module is the one that may
        if not name.startswith(("WORKHORSE_", "AWS_", "ECS_"))
    }
    return {**kept, **changes}


def doubts(settings: Settings) -> list[Doubt]:
    """Return what a person has probably meant otherwise: names that are no setting's, and a store
    that was left to its default where several machines are at work.

    A variable is named only where it comes near a setting: others may be somebody's own.
    """
    import difflib  # a cold start seldom needs it

    known = {_variable(name).removeprefix(_PREFIX): _variable(name) for name in _FIELDS}
    found = []
    for name in sorted(os.environ):  # noqa: TID251 - this module is the one that may
        rest = name.upper().removeprefix(_PREFIX)
        if name.upper().startswith(_PREFIX) and rest not in known:
            near = difflib.get_close_matches(rest, known, n=1)
            if near:
                message = f"the variable {name} is no setting, and is ignored"
                found.append(Doubt(message, f"{known[near[0]]} may be meant"))
    if settings.lane not in _OWN_PLACE and "database_url" not in settings.model_fields_set:
        message = (
            "database_url is not set, so runs are in a file of SQLite on this machine, while "
            f"wakeups go over the lane {settings.lane}"
        )
        found.append(Doubt(message, f"set {_PREFIX}DATABASE_URL to the database of all machines"))
    return found


def new_doubts(settings: Settings) -> list[Doubt]:
    """Return the doubts that nobody has told in this process, and nobody else will."""
    if _commanded:
        return []
    found = [doubt for doubt in doubts(settings) if doubt.message not in _told]
    _told.update(doubt.message for doubt in found)
    return found


_PREFIX = "WORKHORSE_"
_FIELDS = tuple(Settings.model_fields)


def _variable(field: str) -> str:
    alias = _ALIASES.get(field.removesuffix("_name") if field == "schema_name" else field)
    return alias if alias is not None else f"{_PREFIX}{field.upper()}"


def load_settings(**given: Any) -> Settings:
    """Return settings from arguments (those that are not None) and the environment.

    Raises:
        ConfigurationError: A setting is unknown or wrong; it is named. Of values, only names are
            shown.
    """
    given = {**given, **_overrides}
    given = {_ALIASES.get(name, name): value for name, value in given.items()}
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        problems = [
            f"{_plain('.'.join(map(str, problem['loc']))) or 'settings'}: "
            + _plain(problem["msg"].removeprefix("Value error, "))
            for problem in found[:_MOST_PROBLEMS]
        ]
        if len(found) > len(problems):
            problems.append(f"and {len(found) - len(problems):,} more")
        raise ConfigurationError(f"settings: {'; '.join(problems)}") from None
    except SettingsError as error:  # a variable that should hold JSON holds none
        raise ConfigurationError(f"settings: {_plain(str(error))}") from None
    except RecursionError:
        raise ConfigurationError(
            "settings: a variable that should hold JSON is nested too deep; of all settings, only "
            "sqs_queue_urls is JSON"
        ) from None


_MOST_PROBLEMS = 5


def _plain(text: str) -> str:
    """Return a text for a message: keys of a dict may be of any length, with anything in them."""
    cut = text if len(text) <= 160 else f"{text[:160]}..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)
