"""The demo from its command to its exit code: what it needs, what it tells, how it ends."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from workhorse.cli import exits
from workhorse.cli.demo.broker import PREFIX, REGION
from workhorse.cli.demo.fleet import DemoFailedError, Fleet, StoppedError
from workhorse.cli.demo.stage import Stage
from workhorse.errors import ConfigurationError
from workhorse.settings import child_environment

if TYPE_CHECKING:
    from workhorse.cli.rendering import Renderer
    from workhorse.store.operators.timelines import TimelineEntry

LANES: Final = ("sqs", "polling")


def run_demo(renderer: Renderer, lane: str) -> int:
    """Run the demo; return the exit code.

    Raises:
        ConfigurationError: The lane is none of the demo's, or what it needs is not installed.
    """
    if lane not in LANES:
        raise ConfigurationError(f"the demo knows the lanes {' and '.join(LANES)}; got {lane!r}")
    if lane == "sqs" and not all(map(importlib.util.find_spec, ("moto", "flask", "boto3"))):
        raise ConfigurationError(
            "the demo's SQS endpoint is moto, which is not installed; "
            "pip install 'moto[server,sqs]', or use `workhorse demo --lane polling`"
        )
    with Fleet(child_environment(_environment(lane))) as fleet, renderer.live() as draw:
        stage = Stage(renderer, fleet, draw)
        endpoint = None
        if lane == "sqs":
            endpoint = fleet.start("sqs endpoint", "-m", "workhorse.cli.demo.endpoint", held=True)
        # Imports SQLAlchemy, while the endpoint starts.
        from workhorse.cli.demo.story import Story

        story = Story(stage, fleet, endpoint)
        try:
            sums = story.play()
        except StoppedError as stopped:
            stage.say("demo", f"{stopped}: ending all processes")
            return stopped.exit_code
        except (DemoFailedError, OSError) as failed:
            stage.explain_failure([str(failed)])
            return exits.BAD_NEWS
        fleet.stop(fleet.members)
        if sums.problems:
            stage.explain_failure(sums.problems)
    if story.shown is not None:
        _show(renderer, *story.shown)
    for words in sums.in_words:
        renderer.event({"event": "books", "what": words}, f"books: {words}")
    renderer.event({"event": "summary", **asdict(sums)}, str(sums))
    return exits.BAD_NEWS if sums.problems else exits.OK


def _show(renderer: Renderer, run_id: str, entries: Sequence[TimelineEntry]) -> None:
    """Show what happened to a run, as an operator would look at it."""
    from workhorse.cli.views import entry_document, timeline_table

    documents = [entry_document(each) for each in entries]
    renderer.event({"event": "timeline", "id": run_id, "entries": documents}, "")
    if not renderer.json:
        title = f"$ workhorse runs timeline {run_id}"
        renderer.document(documents, title, timeline_table(entries), "")


def _environment(lane: str) -> Mapping[str, str]:
    """Return what the processes are told; nothing of it leads outside this machine."""
    return {
        "WORKHORSE_APP": "workhorse.cli.demo.shop:app",
        "WORKHORSE_LANE": lane,
        "WORKHORSE_QUEUES": "parcels,counter",
        "WORKHORSE_LEASE_SECONDS": "2",
        "WORKHORSE_CONCURRENCY": "4",
        "WORKHORSE_DRAIN_SECONDS": "3",
        "WORKHORSE_SQS_QUEUE_PREFIX": PREFIX,
        "WORKHORSE_SQS_CLIENT": "boto3",
        "WORKHORSE_AWS_REGION": REGION,
        # For an emulator that checks none of it.
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
