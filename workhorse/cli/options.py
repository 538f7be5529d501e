"""Options that every command takes: the app, `--json`, and each setting under its own name.

They are accepted before and behind the command. The table stands here in plain text, since
importing the settings costs more than the help may take; a test compares the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from workhorse.cli.invocation import Invocation

Function = Callable[..., int | None]


@dataclass(frozen=True, slots=True)
class SettingOption:
    """A setting as an option: `--name VALUE`, or `--name/--no-name` where it has no metavar."""

    name: str
    metavar: str
    help: str

    @property
    def annotation(self) -> Any:
        """The type that typer reads."""
        return str | None if self.metavar else bool | None


SETTINGS: Final = (
    SettingOption("database_url", "URL", "postgresql://user@host/database or sqlite:///path."),
    SettingOption("database_secret", "ARN", "A secret of AWS with the database's user, password."),
    SettingOption("schema", "NAME", "PostgreSQL schema of the tables."),
    SettingOption("environment", "NAME", "Keeps several systems apart: scopes all names."),
    SettingOption("pooler", "", "The database is behind a pooler in transaction mode, for sure."),
    SettingOption("lane", "NAME", "How wakeups travel: sqs, notify, polling or another lane."),
    SettingOption("listen_url", "URL", "Lane notify: the database's own address, past a pooler."),
    SettingOption("queues", "A,B", "The queues to serve."),
    SettingOption("lease_seconds", "SECONDS", "How long a lease lives without renewal."),
    SettingOption("concurrency", "N", "Runs that one worker has under way at once."),
    SettingOption("processes", "N", "Processes for tasks that ask for one; else one a core."),
    SettingOption("poll_ms", "MS", "Pause between two scans that found little."),
    SettingOption("drain_seconds", "SECONDS", "How long runs may go on after a stop signal."),
    SettingOption("hint_stride", "N", "Ready runs for which one wakeup is sent in bulk."),
    SettingOption("share_commits", "", "Enqueues of callers at once share a commit."),
    SettingOption("health_port", "PORT", "Where a worker answers /livez; 0 picks a free port."),
    SettingOption("health_host", "HOST", "The address of that port."),
    SettingOption("build", "TEXT", "What this was built from; rises with each deployment."),
    SettingOption("newest_build_only", "", "Leave queues to workers of newer builds."),
    SettingOption("metrics", "FORMAT", "off, or emf: maintenance writes measures to the output."),
    SettingOption("metrics_namespace", "NAME", "CloudWatch's namespace of these measures."),
    SettingOption("min_time_left_seconds", "SECONDS", "Lambda: what a run needs to be begun."),
    SettingOption("function_timeout_seconds", "SECONDS", "The Lambda functions' time-out."),
    SettingOption("log_level", "LEVEL", "DEBUG, INFO, WARNING, ERROR or CRITICAL."),
    SettingOption("log_format", "FORMAT", "text or json."),
    SettingOption("aws_endpoint_url", "URL", "An SQS endpoint other than AWS's own."),
    SettingOption("aws_region", "REGION", "The region of the SQS queues."),
    SettingOption("sqs_queue_prefix", "TEXT", "What stands before a queue's name at SQS."),
    SettingOption("sqs_queue_urls", "JSON", "Queue name to the URL, ARN or name of its SQS queue."),
    SettingOption("sqs_fifo", "", "Queue names stand for FIFO queues."),
    SettingOption("sqs_client", "NAME", "auto, boto3, aioboto3 or lean."),
)


def _flag(option: SettingOption) -> str:
    flag = option.name.replace("_", "-")
    return f"--{flag}" if option.metavar else f"--{flag}/--no-{flag}"


GLOBAL_OPTIONS: Final = ("app", "json", *(option.name for option in SETTINGS))


def accept_globals(
    function: Function,
    *,
    own: Mapping[str, Any] | None = None,
    shown: Collection[str] = ("app", "json"),
    taken: Collection[str] = GLOBAL_OPTIONS,
) -> Callable[..., int | None]:
    """Return a function for typer that takes the global options too, and hands them on.

    Args:
        function: Takes the `Invocation`, then what is its own.
        own: Further parameters that typer handles by itself, by name.
        shown: The global options that the help lists; the others work all the same.
        taken: The global options that are accepted at all.
    """
    signature = inspect.signature(function, eval_str=True)
    parameters = list(signature.parameters.values())[1:]
    extra = [
        inspect.Parameter(name, _KEYWORD, default=False, annotation=annotation)
        for name, annotation in (own or {}).items()
    ]
    common = [_parameter(name, hidden=name not in shown) for name in taken]

    def call(ctx: typer.Context, **given: Any) -> int | None:
        invocation: Invocation = ctx.obj
        for parameter in extra:
            given.pop(parameter.name)
        invocation.take({parameter.name: given.pop(parameter.name) for parameter in common})
        return function(invocation, **given)

    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    everything = [context, *(p.replace(kind=_KEYWORD) for p in parameters), *extra, *common]
    call.__name__ = function.__name__
    call.__doc__ = function.__doc__
    call.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]  # typer reads it
    call.__annotations__ = {each.name: each.annotation for each in everything}
    return call


def command(
    group: typer.Typer,
    name: str,
    function: Function,
    *,
    shown: Collection[str] = (),
    taken: Collection[str] = GLOBAL_OPTIONS,
) -> None:
    """Add a command that takes the global options; its help lists those of `shown`."""
    listed = {"app", "json", *shown}
    group.command(name)(accept_globals(function, shown=listed, taken=taken))


_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY


def _parameter(name: str, *, hidden: bool) -> inspect.Parameter:
    annotation: Any
    default: Any = None
    if name == "app":
        told = "The app, where its tasks are needed; also WORKHORSE_APP."
        annotation = Annotated[
            str | None, typer.Option("--app", metavar="MODULE:ATTR", help=told, hidden=hidden)
        ]
    elif name == "json":
        told = "Print JSON for programs."
        annotation = Annotated[bool, typer.Option("--json", help=told, hidden=hidden)]
        default = False
    else:
        option = _BY_NAME[name]
        annotation = Annotated[
            option.annotation,
            typer.Option(
                _flag(option), metavar=option.metavar or None, help=option.help, hidden=hidden
            ),
        ]
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=annotation)


_BY_NAME: Final = {option.name: option for option in SETTINGS}
