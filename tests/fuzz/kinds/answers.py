"""What other services answer: the ECS agent, SQS, a health port, a store of secrets."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from typing import Any, Final
from unittest import mock

from lanes.secrets import AwsSecrets
from lanes.sqs import checks
from lanes.sqs.addresses import Addresses
from lanes.sqs.clients import Calls, Endpoint, Timing
from lanes.sqs.explaining import SqsError, explain
from lanes.sqs.lean import LeanCalls
from tests.fuzz.evil import (
    OBJECTS,
    SECRET,
    TEXTS,
    json_values,
    just,
    leaves,
    or_evil,
    or_json,
    texts,
)
from tests.fuzz.judging import judge_message, refusal_of
from tests.fuzz.kind import Check, Kind
from tests.fuzz.serving import RAW, http, server
from tests.fuzz.source import Source
from workhorse import probe
from workhorse.domain.findings import Finding
from workhorse.errors import ConfigurationError, StoreUnavailableError
from workhorse.runtime.execution.ecs_agent import AgentError, EcsAgent
from workhorse.settings import load_settings
from workhorse.store.base.credentials import Credentials
from workhorse.store.base.database import Store, Tx

# -- the ECS agent ---------------------------------------------------------------------------------


@contextmanager
def _agents() -> Iterator[Check]:
    with server() as agent_server:
        agent = EcsAgent(f"http://127.0.0.1:{agent_server.port}/api/x")

        def check(answer: bytes) -> bool:
            agent_server.answer = answer
            refused = False
            for protects in (True, False):
                try:
                    agent.protect(60) if protects else agent.release()
                except AgentError as error:
                    refused = True
                    judge_message(f"the task is not protected: {error}")
            return refused

        yield check


def _protection(source: Source) -> str:
    return json.dumps(
        source.one(
            lambda s: s.fields(
                protection=or_json(
                    lambda s: s.fields(
                        ProtectionEnabled=or_json(just(True, False)), TaskArn=or_json(just("arn"))
                    )
                )
            ),
            lambda s: s.fields(
                failure=or_json(lambda s: s.fields(Reason=or_json(just("TASK_NOT_VALID"))))
            ),
            lambda s: s.fields(
                error=or_json(lambda s: s.fields(Code=or_json(just("AccessDeniedException"))))
            ),
            json_values,
        )
    )


def _agent_uri(given: str) -> bool:
    return refusal_of(lambda: EcsAgent(given), names=True) is not None


def _uri(source: Source) -> str:
    def part(s: Source) -> str:
        return str(s.one(just("169.254.170.2", "[::1]", "[::1", "h:80", "h:99999", "u@h"), texts))

    return source.one(texts, lambda s: f"http://{part(s)}/{texts(s)}", lambda s: f"http:{part(s)}")  # type: ignore[no-any-return]


# -- a health port, as the probe asks it -----------------------------------------------------------


@contextmanager
def _probes() -> Iterator[Check]:
    with server() as health:

        def check(answer: bytes) -> bool:
            health.answer = answer
            said = io.StringIO()
            with redirect_stderr(said):
                code = probe.main(["--port", str(health.port)], {})
            assert code in (0, 1)
            lines = said.getvalue().splitlines()
            assert len(lines) == code
            for line in lines:
                judge_message(line)
            return code == 1

        yield check


def _probe_words(given: tuple[list[str], str, str]) -> bool:
    words, port, host = given
    said = io.StringIO()
    variables = {"WORKHORSE_HEALTH_PORT": port, "WORKHORSE_HEALTH_HOST": host}
    with redirect_stderr(said):
        code = probe.main(words, variables, 0.2)
    assert code == 1, "nothing listens there"
    judge_message(said.getvalue().rstrip("\n"), names=True)
    return True


def _words(source: Source) -> tuple[list[str], str, str]:
    # A name would be looked up elsewhere; these are none, or addresses.
    hosts = just("", "127.0.0.1", "::1", "127.0.0.1:1", "[::1]", "a" * 70, "\udce4", "\0", ".",
                 "a..b", "256.1.1.1.1.", "x" * 300 + ".invalid")  # fmt: skip
    words = source.many(just("--ready", "--port", "--host", "1", "x", "", "--", "-h"), 3)
    if "--host" in words and "x" in words:
        words.remove("x")
    ports = just("1", "", "0", "65536", "9" * 5_000, "²")
    return words, source.one(ports, texts), hosts(source)


# -- SQS -------------------------------------------------------------------------------------------


class _Canned(Calls):
    """Answers each call with whatever it was given."""

    region = "eu-west-1"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def _call(self, operation: str, *, long: bool = False, **parameters: Any) -> Any:
        return self._answer

    async def prepare(self) -> None: ...

    async def close(self) -> None: ...


def _seam(given: tuple[str, Any]) -> bool:
    """Read an answer of SQS's: what cannot be read is an error that can be told."""
    which, answer = given
    calls, url, entry = _Canned(answer), "https://sqs.eu-west-1.amazonaws.com/1/q", {"Id": "0"}
    addresses = Addresses(load_settings())
    asked: dict[str, Callable[[], Any]] = {
        "send": lambda: calls.send_batch(url, [entry]),
        "delete": lambda: calls.delete_batch(url, [entry]),
        "url": lambda: calls.queue_url("q", None),
        "attributes": lambda: calls.attributes(url, "All"),
        "check": lambda: checks.check(calls, addresses, "mail", function_timeout_s=30),
        "probe": lambda: checks.probe(calls, addresses, "mail"),
    }
    try:
        found = asyncio.run(asked[which]())
    except Exception as error:
        if which in ("check", "probe"):
            raise  # whatever is wrong there is a finding
        judge_message(str(SqsError(explain(error, "mail", None, "eu-west-1"))))
        return True
    for each in found if isinstance(found, list) else ():
        if isinstance(each, Finding):
            judge_message(each.sentence, names=True)
    return False


_ODD: Final[tuple[Any, ...]] = (
    None, [], {}, "", 1, {"Failed": None}, {"Failed": [[]]}, {"QueueUrl": None}, {"Attributes": [1]}
)  # fmt: skip


def _seam_answer(source: Source) -> tuple[str, Any]:
    numbers = or_json(just("30", "-1", "9" * 5_000, "1.5", "", "²"))
    arns = just("arn:aws:sqs:eu-west-1:1:dead", "arn:aws:sqs:eu-west-1:1:", "arn", "a:b:c:d:e:f")
    policy = or_json(
        lambda s: json.dumps(
            s.fields(deadLetterTargetArn=or_json(arns), maxReceiveCount=or_json(just(3, "3", "x")))
        )
    )
    answers = (
        lambda s: {"Failed": s.many(lambda s: s.fields(Id=or_json(just("0")), Code=texts), 3)},
        lambda s: s.fields(QueueUrl=or_json(just("https://sqs.eu-west-1.amazonaws.com/1/q"))),
        lambda s: s.fields(
            QueueUrl=or_json(just("https://sqs.eu-west-1.amazonaws.com/1/q")),
            Attributes=or_json(
                lambda s: s.fields(
                    VisibilityTimeout=numbers,
                    ApproximateNumberOfMessages=numbers,
                    RedrivePolicy=policy,
                    FifoQueue=or_json(just("true", "false")),
                    MessageRetentionPeriod=numbers,
                    DelaySeconds=numbers,
                    ReceiveMessageWaitTimeSeconds=numbers,
                    KmsMasterKeyId=or_json(just("alias/x")),
                )
            ),
        ),
        json_values,
    )
    which = source.pick(["send", "delete", "url", "attributes", "check", "check", "check", "probe"])
    return which, source.one(*answers)


@contextmanager
def _over_http() -> Iterator[Check]:
    variables = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": SECRET}
    timing = Timing(attempts=1, long_read_s=5)
    with server() as sqs, asyncio.Runner() as runner, mock.patch.dict("os.environ", variables):
        calls = LeanCalls(Endpoint(f"http://127.0.0.1:{sqs.port}", "eu-west-1"), timing)

        def check(answer: bytes) -> bool:
            sqs.answer = answer
            try:
                runner.run(calls.receive("http://127.0.0.1/q", 10, 0))
            except Exception as error:  # noqa: BLE001 - the lane explains each
                judge_message(str(SqsError(explain(error, "mail", None, "eu-west-1"))))
                return True
            return False

        try:
            yield check
        finally:
            runner.run(calls.close())


def _sqs_body(source: Source) -> str:
    message = {"MessageId": "059f36b4", "ReceiptHandle": "handle", "Body": "{}"}
    return json.dumps(
        source.one(
            lambda s: {"Messages": [message | s.options(Body=texts, Attributes=json_values)]},
            lambda s: {"__type": s.one(just("com.amazonaws.sqs#QueueDoesNotExist", "x"), texts,
                                       json_values)},
            json_values,
        )
    )  # fmt: skip


# -- a store of secrets ----------------------------------------------------------------------------


class _Client:
    """Stands for boto3's, and answers whatever it was given."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def get_secret_value(self, **_: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def close(self) -> None: ...


def _touch(tx: Tx) -> None:
    tx.conn.exec_driver_sql("select 1")


def _secret(answer: Any) -> bool:
    """Log in with what a secret holds: nobody is there, so each ends as a store that is away."""
    secrets = AwsSecrets("eu-west-1")
    with mock.patch.object(AwsSecrets, "_client", return_value=_Client(answer)):
        credentials = Credentials(lambda: secrets.read("db"), "the secret 'db'")
        store = Store.open("postgresql://127.0.0.1:1/db", credentials=credentials)
        try:
            error = refusal_of(lambda: store.try_once(_touch))
            assert isinstance(error, StoreUnavailableError | ConfigurationError)
        finally:
            store.close()
    return True


def _secrets(source: Source) -> Any:
    user = or_evil(just("app", "a b", "a'b", "a\\b", "a=b", "é"))

    def text(s: Source) -> str:
        def known(s: Source) -> Any:
            return s.fields(username=user, password=or_evil(just(SECRET)))

        # No whole values: those that hold themselves many times over are never through.
        drawn = s.one(known, known, texts)
        try:
            return json.dumps(drawn, default=lambda other: type(other).__name__)
        except (TypeError, ValueError, RecursionError):
            return texts(s)

    return source.one(
        lambda s: {"SecretString": text(s)},
        lambda s: {"SecretString": text(s)},
        lambda s: {"SecretString": texts(s)},
        lambda s: {"SecretString": leaves(s)},
        lambda s: {"SecretBinary": b"\0"},
        lambda s: ValueError(texts(s)),
        lambda s: RuntimeError(leaves(s)),
        leaves,
    )


KINDS: Final = (
    Kind(name="ecs agent", share=1_500, draw=http(_protection), corpus=RAW, rig=_agents),
    Kind(
        name="ecs uri",
        share=1_000,
        draw=_uri,
        corpus=TEXTS,
        rig=lambda: nullcontext(_agent_uri),
    ),
    Kind(
        name="probe",
        share=1_000,
        draw=http(just("ok", "")),
        corpus=RAW,
        rig=_probes,
    ),
    Kind(name="probe words", share=500, draw=_words, rig=lambda: nullcontext(_probe_words)),
    Kind(
        name="sqs answers",
        share=2_000,
        draw=_seam_answer,
        corpus=[(which, each) for which in ("send", "url", "attributes", "check", "probe")
                for each in _ODD],
        rig=lambda: nullcontext(_seam),
    ),
    Kind(name="sqs http", share=1_500, draw=http(_sqs_body), corpus=RAW, rig=_over_http),
    Kind(
        name="secrets",
        share=1_000,
        draw=_secrets,
        corpus=[
            *OBJECTS[::4],
            *({"SecretString": each} for each in TEXTS),
            *({"SecretString": json.dumps({"username": each, "password": SECRET})}
              for each in TEXTS if len(each) < 1_000),
        ],
        rig=lambda: nullcontext(_secret),
    ),
)  # fmt: skip
