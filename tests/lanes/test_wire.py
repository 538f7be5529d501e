"""The message format: what is written is small, and whatever is read does no harm."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanes import wire
from workhorse.domain.ids import RunId, new_run_id
from workhorse.ports import Unreadable, Wakeup

RUN = RunId("0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def body(**fields: object) -> str:
    return json.dumps({"workhorse": 1, "run_id": RUN, "queue": "default"} | fields)


def test_what_is_written_is_read() -> None:
    for trace in (TRACE, None):
        wakeup = Wakeup(new_run_id(), "orders_2-x", trace)
        assert wire.decode(wire.encode(wakeup)) == wakeup


def test_how_often_a_run_was_not_there_travels_with_its_wakeup() -> None:
    wakeup = Wakeup(RUN, "default", missed=2)
    assert wire.decode(wire.encode(wakeup)) == wakeup
    assert "missed" not in json.loads(wire.encode(Wakeup(RUN, "default")))


@pytest.mark.parametrize("missed", [-1, 1_001, 1.5, True, "1", None, [1]])
def test_a_count_that_is_none_is_left_out(missed: object) -> None:
    assert wire.decode(body(missed=missed)) == Wakeup(RUN, "default")


def test_the_fields_are_those_of_the_documented_format() -> None:
    assert json.loads(wire.encode(Wakeup(RUN, "default", TRACE))) == {
        "workhorse": 1,
        "run_id": RUN,
        "queue": "default",
        "traceparent": TRACE,
    }
    assert "traceparent" not in json.loads(wire.encode(Wakeup(RUN, "default")))


def test_a_body_stays_under_1_kib_whatever_its_trace() -> None:
    longest = Wakeup(RUN, "q" * 60, "t" * 1_000_000)
    assert len(wire.encode(longest).encode()) < 300 < wire.MAX_WRITTEN_BYTES


def test_unknown_fields_are_ignored() -> None:
    assert wire.decode(body(priority=7, nested={"deep": [1, 2]})) == Wakeup(RUN, "default")


def test_a_run_id_in_upper_case_is_the_same_run() -> None:
    assert wire.decode(body(run_id=RUN.upper())) == Wakeup(RUN, "default")


@pytest.mark.parametrize("trace", ["", "x", 7, None, [], TRACE.upper(), TRACE + "\n", "t" * 5_000])
def test_a_trace_that_is_none_costs_the_trace_and_not_the_wakeup(trace: object) -> None:
    assert wire.decode(body(traceparent=trace)) == Wakeup(RUN, "default")


@pytest.mark.parametrize("version", [2, 10**30])
def test_a_newer_major_version_is_told_apart(version: int) -> None:
    assert wire.decode(json.dumps({"workhorse": version})) is Unreadable.NEWER_FORMAT


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "null",
        "7",
        "[]",
        "{}",
        "not json",
        '{"workhorse":1',
        body() + "x",
        "\x00" + body(),
        body()[:-1] + "\x00}",
        body(workhorse=0),
        body(workhorse=-1),
        body(workhorse=True),
        body(workhorse="1"),
        body(workhorse=1.0),
        body(workhorse=None),
        '{"workhorse":' + "9" * 6_000 + "}",
        body(run_id=None),
        body(run_id=7),
        body(run_id=""),
        body(run_id="not a uuid"),
        body(run_id="{" + RUN + "}"),
        body(run_id=f"urn:uuid:{RUN}"),
        body(run_id=RUN.replace("-", "")),
        body(run_id=RUN + "\n"),
        body(run_id=" " + RUN),
        body(run_id=RUN.replace("0", "\u0660")),
        body(run_id=RUN[:-1] + "\x00"),
        body(run_id=[RUN]),
        body(queue=None),
        body(queue=""),
        body(queue="Default"),
        body(queue="q" * 61),
        body(queue="../etc"),
        body(queue="a\x00b"),
        body(queue=["default"]),
        body(queue="\ud800"),
        body(filler="x" * 10_000),
        "[" * 8_000,
        '{"workhorse":1,"a":' + "[" * 4_000 + "]" * 4_000 + "}",
        '{"a":' * 1_500,
        "\ud800",
        "x" * 1_000_000,
        None,
        7,
        body().encode(),
    ],
)
def test_rubbish_is_malformed_and_never_raises(bad: object) -> None:
    assert wire.decode(bad) is Unreadable.MALFORMED


@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(json.dumps)
    | st.fixed_dictionaries(
        {},
        optional={
            "workhorse": st.integers(-1, 3) | st.text(max_size=3),
            "run_id": st.uuids().map(str) | st.text(),
            "queue": st.from_regex(r"[a-z0-9_-]{1,70}", fullmatch=True) | st.none(),
            "traceparent": st.text() | st.just(TRACE),
        },
    ).map(json.dumps)
)
def test_any_text_is_read_to_something_that_can_be_written(text: str) -> None:
    found = wire.decode(text)
    if isinstance(found, Wakeup):
        assert wire.decode(wire.encode(found)) == found


def test_the_examples_in_the_docs_are_wakeups() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wakeups.md").read_text()
    examples = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert examples
    assert all(isinstance(wire.decode(example), Wakeup) for example in examples)
