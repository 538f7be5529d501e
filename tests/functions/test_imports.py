"""What a function does not load: others pay for that with each cold start."""

from __future__ import annotations

import json

import pytest

from tests.functions.conftest import HERE, ROOT, Deployed, body_of
from tests.support.processes import Processes

NEVER = ["alembic", "typer", "click", "rich", "mako", "workhorse.cli", "workhorse.dashboard"]
NOTHING_IS_SENT = ["boto3", "botocore", "aioboto3", "aiobotocore", "aiohttp"]

_INVOKE = """
import json, sys
import program
loaded = [*sys.modules]
class Context:
    def get_remaining_time_in_millis(self):
        return 60_000
record = {"messageId": "m", "body": sys.argv[1], "attributes": {}, "eventSource": "aws:sqs",
          "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:q"}
assert program.handler({"Records": [record]}, Context()) == {"batchItemFailures": []}
print("modules", json.dumps([loaded, [*sys.modules]]))
"""


@pytest.mark.parametrize("names", [NEVER, NOTHING_IS_SENT], ids=["never", "before a send"])
def test_a_function_loads_nothing_that_it_does_not_use(
    deployed: Deployed, processes: Processes, names: list[str]
) -> None:
    """Neither when its module is imported, nor by an invocation that has nothing to send."""
    run_id = deployed.new("quick_async")
    process = processes.python(
        "-c", _INVOKE, body_of(run_id),
        env={
            "PYTHONPATH": f"{ROOT}:{HERE}",
            "WITNESS": str(deployed.witness_file),
            "WORKHORSE_DATABASE_URL": deployed.url,
        },
    )  # fmt: skip
    found = process.wait_for(r"^modules (.*)$")[1]
    for loaded in json.loads(found):
        assert "workhorse.runtime.functions.invocations" in loaded
        assert set(names) & set(loaded) == set()
    assert deployed.witnessed() == ["quick_async one"]


def test_the_package_alone_loads_no_function(processes: Processes) -> None:
    """`import workhorse` stays quick."""
    process = processes.python(
        "-c",
        "import sys, workhorse\n"
        "print('found', [m for m in sys.modules if m.startswith(('workhorse.f', 'sqlalchemy'))])",
        env={"PYTHONPATH": str(ROOT)},
    )
    assert process.wait_for(r"^found (.*)$")[1] == "[]"
