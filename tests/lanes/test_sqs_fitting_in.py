"""Where SQS is and who asks is found as any user of boto3 expects, by each client.

Each case is a process with a clean environment, so that nothing of this one's helps it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lanes import wire
from tests.lanes.fitting_program import CLIENTS
from tests.support.sqs_proxy import Answer, Call, SqsProxy
from workhorse.domain.ids import new_run_id
from workhorse.ports import Wakeup
from workhorse.settings import child_environment

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:1"
KEYS = {"AWS_ACCESS_KEY_ID": "OWN", "AWS_SECRET_ACCESS_KEY": "testing"}
LATER = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
NAME, ARN = "workhorse-q", "arn:aws:sqs:eu-north-1:123456789012:given"


class Credentials:
    """ECS's or EKS's credentials, and STS, on loopback."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(f"{self.path} {self.headers.get('Authorization')}")
                keys = {"AccessKeyId": "CONTAINER", "SecretAccessKey": "x", "Token": "t"}
                self._answer("application/json", json.dumps(keys | {"Expiration": LATER}))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                owner.asked.append(body)
                self._answer(
                    "text/xml",
                    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>"
                    "<Credentials><AccessKeyId>IRSA</AccessKeyId><SecretAccessKey>x"
                    f"</SecretAccessKey><SessionToken>t</SessionToken><Expiration>{LATER}"
                    "</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
                    "</AssumeRoleWithWebIdentityResponse>",
                )

            def _answer(self, kind: str, content: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content.encode())

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base's name)
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def credentials() -> Iterator[Credentials]:
    credentials = Credentials()
    yield credentials
    credentials.close()


@pytest.fixture
def sqs() -> Iterator[SqsProxy]:
    """An SQS that knows every queue, and has a message in each."""

    def answer(call: Call) -> Answer:
        match call.operation:
            case "GetQueueUrl":
                return Answer(200, {"QueueUrl": f"{proxy.url}/1/{call.parameters['QueueName']}"})
            case "SendMessageBatch":
                done = [
                    {"Id": e["Id"], "MessageId": "m", "MD5OfMessageBody": ""} for e in call.entries
                ]
                return Answer(200, {"Successful": done, "Failed": []})
            case "ReceiveMessage":
                body = wire.encode(Wakeup(new_run_id(), "q"))
                return Answer(
                    200, {"Messages": [{"MessageId": "m", "ReceiptHandle": "h", "Body": body}]}
                )
            case _:
                return Answer(200, {"Successful": [], "Failed": []})

    with SqsProxy() as proxy:
        proxy.fault = answer
        yield proxy


@dataclass(frozen=True)
class Case:
    """An environment, and what all calls show of it; `{sqs}` and the like are filled in."""

    environment: dict[str, str]
    key: str = "OWN"
    region: str = "eu-north-1"
    config: str = ""
    shared: str = ""
    asked: str = ""
    """A pattern of what the source of the credentials was asked."""
    queue: str = NAME
    owner: str | None = None
    looked_up: bool = True
    relative: bool = False


HERE = {"AWS_ENDPOINT_URL": "{sqs}"}
DEFAULT = {"AWS_DEFAULT_REGION": "eu-north-1"}
PROFILE = "[profile work]\nregion = eu-north-1\n"
CASES = {
    "endpoint": Case(KEYS | DEFAULT | HERE),
    "endpoint-of-sqs-first": Case(
        KEYS | DEFAULT | {"AWS_ENDPOINT_URL": NOWHERE, "AWS_ENDPOINT_URL_SQS": "{sqs}"}
    ),
    "setting-of-the-endpoint-first": Case(
        KEYS | DEFAULT | {"AWS_ENDPOINT_URL_SQS": NOWHERE, "WORKHORSE_AWS_ENDPOINT_URL": "{sqs}"}
    ),
    "region": Case(KEYS | HERE | {"AWS_REGION": "eu-north-1"}),
    "default-region-first-as-in-boto3": Case(KEYS | HERE | DEFAULT | {"AWS_REGION": "eu-west-1"}),
    "setting-of-the-region-first": Case(
        KEYS
        | HERE
        | {
            "WORKHORSE_AWS_REGION": "eu-north-1",
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_REGION": "eu-west-2",
        }
    ),
    "profile": Case(
        {"AWS_PROFILE": "work"},
        key="SHARED",
        config=PROFILE + "endpoint_url = {sqs}\n",
        shared="[work]\naws_access_key_id = SHARED\naws_secret_access_key = x\n",
    ),
    "services-of-a-profile": Case(
        KEYS | {"AWS_PROFILE": "work"},
        config=f"{PROFILE}services = local\n[services local]\nsqs =\n  endpoint_url = {{sqs}}\n",
    ),
    "container-full-uri": Case(
        HERE
        | DEFAULT
        | {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://{credentials}/mine",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "let-me-in",
        },
        key="CONTAINER",
        asked="^/mine let-me-in$",
    ),
    "container-relative-uri": Case(
        HERE | DEFAULT | {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials/7"},
        key="CONTAINER",
        asked="^/v2/credentials/7 ",
        relative=True,
    ),
    "irsa": Case(
        HERE
        | DEFAULT
        | {
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/workers",
            "AWS_WEB_IDENTITY_TOKEN_FILE": "{files}/token",
            "AWS_ENDPOINT_URL_STS": "http://{credentials}",
        },
        key="IRSA",
        asked="Action=AssumeRoleWithWebIdentity.*role%2Fworkers.*WebIdentityToken=of-a-pod",
    ),
    "queue-by-name": Case(
        KEYS | DEFAULT | HERE | {"WORKHORSE_SQS_QUEUE_URLS": '{{"q": "given"}}'}, queue="given"
    ),
    "queue-by-arn": Case(
        KEYS | DEFAULT | HERE | {"WORKHORSE_SQS_QUEUE_URLS": f'{{{{"q": "{ARN}"}}}}'},
        queue="given",
        owner="123456789012",
    ),
    "queue-by-url": Case(
        KEYS | DEFAULT | HERE | {"WORKHORSE_SQS_QUEUE_URLS": '{{"q": "{sqs}/1/given"}}'},
        queue="given",
        looked_up=False,
    ),
}


@pytest.mark.parametrize("case", list(CASES.values()), ids=list(CASES))
def test_each_client_finds_its_way(
    case: Case, sqs: SqsProxy, credentials: Credentials, tmp_path: Path
) -> None:
    def filled(text: str) -> str:
        return text.format(sqs=sqs.url, credentials=credentials.host, files=tmp_path)

    (tmp_path / "config").write_text(filled(case.config))
    (tmp_path / "shared").write_text(case.shared)
    (tmp_path / "token").write_text("of-a-pod")
    environment = {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "shared"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONPATH": str(ROOT),
    } | {name: filled(value) for name, value in case.environment.items()}

    done = subprocess.run(
        [sys.executable, "-m", "tests.lanes.fitting_program", credentials.host * case.relative],
        cwd=ROOT,
        env=child_environment(environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    told = [
        f"{client} {what}" for client in CLIENTS for what in ("sent 1 None",) * 2 + ("received 1",)
    ]
    assert done.stdout.splitlines() == told, done.stderr
    calls = sqs.made()
    assert {call.client for call in calls} == set(CLIENTS)
    assert {call.access_key for call in calls} == {case.key}
    assert {call.authorization.split("/")[2] for call in calls} == {case.region}
    urls = {c.parameters["QueueUrl"] for c in calls if c.operation != "GetQueueUrl"}
    assert urls == {f"{sqs.url}/1/{case.queue}"}
    looks = sqs.made("GetQueueUrl")
    assert bool(looks) == case.looked_up
    assert {c.parameters.get("QueueOwnerAWSAccountId") for c in looks} <= {case.owner}
    assert any(re.search(case.asked, each) for each in credentials.asked or [""])
