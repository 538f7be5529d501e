"""Behind MiniStack's event source mapping: what stays in the queue is dead-lettered, no more."""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from pathlib import Path
from typing import Any

from tests.functions.conftest import HERE, Deployed
from tests.support.emulators import Emulator, emulator, our_packages
from tests.support.eventually import eventually
from tests.support.faults import break_claims_of
from tests.support.sqs import SqsEndpoint
from workhorse.domain.ids import new_run_id
from workhorse.domain.runs import RunState


def test_a_batch_of_each_kind_behind_an_event_source_mapping(
    postgresql_url: str, tmp_path: Path
) -> None:
    """One message fails and is dead-lettered; of the others none is left, but what comes later."""
    with emulator("ministack", python_path=our_packages()) as it:
        endpoint = SqsEndpoint(it.url)
        deployed = Deployed(postgresql_url, endpoint, tmp_path)
        try:
            name = f"{deployed.prefix}default"
            deployed.queue.delete()
            deployed.queue = endpoint.create_queue(name, visibility_s=45, dead_letters_after=1)
            dead = endpoint.queue(f"dead-{name}")
            unknown, early = new_run_id(), deployed.new("quick", "early", delay_ms=58_000)
            elsewhere = deployed.new("of another program")
            fine = [deployed.new("quick", f"fine {number}") for number in range(20)]
            broken = deployed.new("quick", "broken")
            break_claims_of(deployed.store, broken)
            deployed.queue.put("{no JSON")
            deployed.put(unknown, early, elsewhere, broken, *fine)

            _deploy(it, deployed)

            def ended() -> bool:
                states = {deployed.state(run_id) for run_id in fine}
                return states == {RunState.SUCCEEDED} and dead.counts().total == 1

            eventually(ended, within=240, what="all that can be run is run, one is dead-lettered")
            (message,) = dead.take()
            assert json.loads(message["Body"])["run_id"] == broken
            assert deployed.state(broken) is RunState.READY
            # The unknown run was looked for once more, and its second message is gone by now.
            eventually(lambda: deployed.queue.counts().total <= 1, within=60, what="one is left")
            assert dead.counts().total == 1
        finally:
            deployed.close()
            endpoint.close()


def _deploy(it: Emulator, deployed: Deployed) -> None:
    role = _client(it, "iam").create_role(
        RoleName=f"role-{uuid.uuid4().hex[:8]}",
        AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": []}),
    )["Role"]["Arn"]
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.write(HERE / "program.py", "program.py")
    functions = _client(it, "lambda")
    name = f"function-{uuid.uuid4().hex[:8]}"
    functions.create_function(
        FunctionName=name,
        Runtime="python3.11",
        Role=role,
        Handler="program.handler",
        Code={"ZipFile": code.getvalue()},
        Timeout=30,
        Environment={
            "Variables": {
                "WORKHORSE_DATABASE_URL": deployed.url,
                "WORKHORSE_SQS_QUEUE_PREFIX": deployed.prefix,
                "WORKHORSE_AWS_ENDPOINT_URL": it.url,
                "WORKHORSE_AWS_REGION": it.region,
                "WORKHORSE_MIN_TIME_LEFT_SECONDS": "5",
                "WITNESS": str(deployed.witness_file),
            }
        },
    )
    eventually(
        lambda: functions.get_function(FunctionName=name)["Configuration"]["State"] == "Active",
        within=60,
        what="the function is active",
    )
    functions.create_event_source_mapping(
        FunctionName=name,
        EventSourceArn=it.arn("sqs", deployed.queue.name),
        BatchSize=10,
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )


def _client(it: Emulator, service: str) -> Any:
    import boto3

    session: Any = boto3.session.Session(
        aws_access_key_id="testing",
        aws_secret_access_key="testing",  # noqa: S106  (no endpoint checks it)
        region_name=it.region,
    )
    return session.client(service, endpoint_url=it.url)
