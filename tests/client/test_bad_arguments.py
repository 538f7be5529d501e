"""Arguments that are of no sensible type, or far too large, are refused by typed errors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lanes.sqs_lambda import SqsEvents
from workhorse.app import Workhorse
from workhorse.cli.entry import run
from workhorse.client.importing import run_of
from workhorse.errors import ConfigurationError, InvalidEventError, InvalidNameError
from workhorse.settings import load_settings

RUN_ID = "0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d"


def test_places_that_are_none_are_refused(sqlite_url: str) -> None:
    with Workhorse(database_url=sqlite_url) as app:
        for place in (5, b"0:0:0:", "9" * 5_000 + ":0:0:"):
            with pytest.raises(ConfigurationError, match="after is no place in a timeline"):
                app.admin.timeline(RUN_ID, after=place)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="after is no place in a list of waits"):
                app.admin.list_waits(after=5)  # type: ignore[arg-type]
        with pytest.raises(InvalidNameError, match="task must be text; got int"):
            app.idempotency.reset(5, "key")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [5, None, object()], ids=["number", "none", "object"])
def test_what_is_no_list_of_requests_is_refused(sqlite_url: str, given: Any) -> None:
    with Workhorse(database_url=sqlite_url) as app:
        with pytest.raises(ConfigurationError, match=r"was given a \w+; nothing was enqueued"):
            app.enqueue_many(given)
        with pytest.raises(ConfigurationError, match=r"was given a \w+; nothing was enqueued"):
            asyncio.run(app.enqueue_many_async(given))


def test_an_event_s_source_is_shown_where_it_is_the_name_of_one() -> None:
    class Activations:
        def serve(self, messages: Any, time_left_ms: Any) -> set[str]:
            raise AssertionError("it was asked")

    source = SqsEvents.open(Activations())
    for named, shown in (("aws:s3", "'aws:s3'"), ("a password", "'not a whole one'")):
        with pytest.raises(InvalidEventError, match=shown):
            source.handle({"Records": [{"eventSource": named}]}, lambda: 60_000)


def test_a_count_of_a_message_without_measure_counts_as_one() -> None:
    class Activations:
        def serve(self, messages: Any, time_left_ms: Any) -> set[str]:
            assert [message.receive_count for message in messages] == [1, 3]
            return set()

    attributes = [{"ApproximateReceiveCount": count} for count in ("9" * 5_000, "3")]
    records = [
        {"eventSource": "aws:sqs", "messageId": "m", "body": "", "attributes": each}
        for each in attributes
    ]

    SqsEvents.open(Activations()).handle({"Records": records}, lambda: 1.0)


def test_a_message_group_that_is_no_text_is_none_of_its_own() -> None:
    class Activations:
        def serve(self, messages: Any, time_left_ms: Any) -> set[str]:
            return {"first"}

    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    records = [
        {
            "eventSource": "aws:sqs",
            "messageId": name,
            "body": "",
            "attributes": {"MessageGroupId": deep},
            "eventSourceARN": "arn:aws:sqs:eu-west-1:1:mail.fifo",
        }
        for name in ("first", "second")
    ]

    answer = SqsEvents.open(Activations()).handle({"Records": records}, lambda: 1.0)

    assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == ["first", "second"]


@pytest.mark.parametrize(
    ("part", "value"),
    [("attempt", []), ("attempt", "1"), ("task", 5), ("tags", "ab"), ("created_at", "2026-01-31")],
)
def test_an_exported_run_with_a_part_of_another_type_is_damaged(part: str, value: object) -> None:
    run_part = {
        "id": RUN_ID, "task": "order", "queue": "default", "state": "failed", "attempt": 1,
        "created_at": "2026-01-31T08:00:00+00:00",
    }  # fmt: skip
    document = {
        "workhorse_export": 1, "run": run_part, "payload": None, "boundaries": [], "deliveries": [],
    }  # fmt: skip
    run_of(json.dumps(document))
    run_part[part] = value

    with pytest.raises(ConfigurationError, match="the exported run is damaged"):
        run_of(json.dumps(document))


def test_json_that_is_nested_without_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = "[" * 200_000
    with pytest.raises(ConfigurationError, match="nested too deep"):
        run_of(endless)
    assert run(["runs", "list", "--sqs-queue-urls", endless]) == 2
    assert "sqs_queue_urls: the text is nested too deep" in capsys.readouterr().err
    monkeypatch.setenv("WORKHORSE_SQS_QUEUE_URLS", endless)
    with pytest.raises(ConfigurationError, match="nested too deep"):
        load_settings()


def test_settings_that_are_wrong_are_told_on_one_short_plain_line() -> None:
    urls: dict[str, Any] = {f"\n{number}" * 100: [] for number in range(50)}

    with pytest.raises(ConfigurationError) as refused:
        load_settings(sqs_queue_urls=urls, schema="A")

    said = str(refused.value)
    assert said.isprintable()
    assert len(said) < 1_500
    assert "and 46 more" in said
    assert "Value error" not in said


def test_a_line_of_the_command_line_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["runs", "replay", "x" * 65_536]) in (2, 74)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert len(line) < 2_100
