"""Each fault that `workhorse doctor` knows (case 5), planted in a system that is well otherwise.

It is a store of each kind and queues at an SQS endpoint, with maintenance that has just run and a
worker that beats. The doctor then has that code to tell, and no other; what is only worth knowing
is no fault.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from lanes.sqs import SqsLane
from tests.cli.conftest import CommandLine
from tests.support.eventually import eventually
from tests.support.left_out import skip_where_not_meant
from tests.support.sqs import REGION, SqsEndpoint, SqsQueue, moto_server
from tests.support.sqs_proxy import DENIED, Answer, SqsProxy, error
from workhorse.client import doctor
from workhorse.client.producing import Client
from workhorse.domain.findings import Code
from workhorse.domain.presence import KEPT_MS, Process, ProcessKind
from workhorse.store.base.database import Store
from workhorse.store.fleet.presence import beat

BROKEN = """
from workhorse import Workhorse

app = Workhorse()


@app.task("orders.charge")
def charge(order: "NoSuchType") -> None:
    pass
"""
STRANGE = """
from workhorse import Workhorse

app = Workhorse()


@app.task("something.else")
def other(payload: dict) -> None:
    pass
"""


@dataclass
class System:
    """What is to be examined."""

    url: str
    prefix: str
    cli: CommandLine
    endpoint: SqsEndpoint
    proxy: SqsProxy
    env: pytest.MonkeyPatch
    ask: Callable[[str], Any]
    """Returns a fixture by its name."""
    app: str = "shop:app"
    options: tuple[str, ...] = ()

    def codes(self) -> tuple[int, dict[str, set[str]]]:
        """Return the exit code, and what was found by its severity."""
        told = self.cli("--app", self.app, "doctor", "--json", *self.options)
        found: dict[str, set[str]] = {}
        for each in told.json["findings"]:
            found.setdefault(each["severity"], set()).add(each["code"])
        assert told.json["ok"] is (told.code == 0)
        return told.code, found

    def queue(self, name: str = "default") -> SqsQueue:
        return self.endpoint.queue(f"{self.prefix}{name}")

    def set_attributes(self, **attributes: str) -> None:
        """Change the settings of the queue `default` at the broker."""
        queue = self.queue()
        queue._client.set_queue_attributes(
            QueueUrl=queue.url,
            Attributes=attributes,  # type: ignore[arg-type]
        )

    def sql(self, statement: str, ago: timedelta = timedelta(0)) -> None:
        """Execute a statement, with `:then` for an instant in the past."""
        store = Store.open(self.url)
        then: Any = datetime.now(UTC) - ago
        if store.kind == "sqlite":
            then = int(then.timestamp() * 1_000_000)
        tables = "workhorse." if store.kind == "postgresql" else ""
        values = {"then": then} if ":then" in statement else {}
        try:
            store.run(lambda tx: tx.conn.execute(text(statement.replace("@", tables)), values))
        finally:
            store.close()

    def beat(self, kind: ProcessKind = ProcessKind.WORKER, **fields: Any) -> None:
        """Let a process beat, once, now."""
        given: dict[str, Any] = {
            "key": uuid.uuid4().hex,
            "id": "w-1",
            "host": "h",
            "pid": 1,
            "version": "1",
            "queues": ("default", "mail"),
            "slots": 10,
        }
        store = Store.open(self.url)
        store.run(beat, Process(kind=kind, **(given | fields)), up_ms=0)
        store.close()

    def enqueue(self, count: int = 1) -> None:
        """Store runs that have been ready for ten minutes, and send their wakeups."""
        for number in range(count):
            payload = json.dumps({"number": number})
            self.cli.ok("--app", "shop:app", "enqueue", "orders.charge", payload)
        eventually(lambda: self.queue().counts().visible == count)
        self.sql("update @live set ready_at = :then", timedelta(minutes=10))

    def write(self, name: str, program: str) -> None:
        """Write an app, and examine it instead of the shop."""
        (self.cli.folder / f"{name}.py").write_text(program)
        self.app = f"{name}:app"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[SqsEndpoint]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def system(
    database_url: str,
    endpoint: SqsEndpoint,
    make_cli: Callable[[str], CommandLine],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[System]:
    """A system that is well."""
    prefix = f"d{uuid.uuid4().hex[:8]}-"
    for name in ("default", "mail"):
        endpoint.create_queue(f"{prefix}{name}", dead_letters_after=10)
    with SqsProxy(endpoint.url) as proxy:
        monkeypatch.setenv("WORKHORSE_LANE", "sqs")
        monkeypatch.setenv("WORKHORSE_AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("WORKHORSE_AWS_REGION", REGION)
        monkeypatch.setenv("WORKHORSE_SQS_QUEUE_PREFIX", prefix)
        monkeypatch.setenv("WORKHORSE_SQS_CLIENT", "boto3")
        monkeypatch.setattr(doctor, "_SECOND_LOOK_S", 0.0)
        cli = make_cli(database_url)
        ask = request.getfixturevalue
        system = System(database_url, prefix, cli, endpoint, proxy, monkeypatch, ask)
        cli.ok("maintain", "--once")
        system.beat()
        system.beat(ProcessKind.MAINTENANCE, id="m-1", queues=(), slots=0)
        yield system
        proxy.fault = None


def test_a_system_that_is_well(system: System) -> None:
    assert system.codes() == (
        0,
        {
            "ok": {
                Code.STORE_OK,
                Code.SCHEMA_OK,
                Code.TASKS_OK,
                Code.MAINTENANCE_OK,
                Code.PROCESSES_OK,
                Code.QUEUES_OK,
            }
        },
    )


# -- faults --------------------------------------------------------------------------------------


def _misspelt(system: System) -> None:
    system.env.setenv("WORKHORSE_DATABSE_URL", "postgresql://shop@db.internal/shop")


def _away(system: System) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    if system.url.startswith("sqlite"):
        nowhere = f"sqlite:///{system.cli.folder}/no/such/folder/db"
    system.env.setenv("WORKHORSE_DATABASE_URL", nowhere)


def _not_migrated(system: System) -> None:
    kind = "sqlite" if system.url.startswith("sqlite") else "postgresql"
    system.env.setenv("WORKHORSE_DATABASE_URL", system.ask(f"empty_{kind}_url"))


def _old_schema(system: System) -> None:
    system.sql("update @meta set version = 1, serves_from = 1")


def _new_schema(system: System) -> None:
    system.sql("update @meta set version = 999, serves_from = 999")


def _of_another_environment(system: System) -> None:
    system.sql("update @meta set environment = 'production'")


def _clock(system: System) -> None:
    later = datetime.now(UTC) + timedelta(minutes=3)
    system.env.setattr(Client, "now", lambda _self: later)


def _bad_annotation(system: System) -> None:
    system.write("broken", BROKEN)


def _unknown_task(system: System) -> None:
    system.enqueue()
    system.write("strange", STRANGE)


def _paused(system: System) -> None:
    system.cli.ok("queues", "pause", "mail", "--by", "ada")


def _purged(system: System) -> None:
    system.enqueue(3)
    system.endpoint.client.purge_queue(QueueUrl=system.queue().url)
    eventually(lambda: system.queue().counts().total == 0)


def _never_maintained(system: System) -> None:
    system.sql("delete from @steps")


def _maintained_long_ago(system: System) -> None:
    system.sql("update @steps set next_at = :then where name = 'recover'", timedelta(hours=1))


def _nobody_works(system: System) -> None:
    system.enqueue()
    system.sql("delete from @processes where kind = 'worker'")


def _others_work(system: System) -> None:
    """A worker of another queue, one that stops, and one that is late: none takes the run."""
    _nobody_works(system)
    system.beat(queues=("mail",))


def _no_such_lane(system: System) -> None:
    system.env.setenv("WORKHORSE_LANE", "carrier-pigeon")


def _no_such_name(system: System) -> None:
    urls = {"mail": "no name of a queue!"}
    system.env.setenv("WORKHORSE_SQS_QUEUE_URLS", json.dumps(urls))


def _lane_breaks(system: System) -> None:
    def check(*_: object) -> None:
        raise OSError("with a secret in it")

    system.env.setattr(SqsLane, "check", check)


def _unheard(system: System) -> None:
    if system.url.startswith("sqlite"):
        skip_where_not_meant("bells are PostgreSQL's")
    system.env.setenv("WORKHORSE_LANE", "notify")
    system.env.setenv("WORKHORSE_LISTEN_URL", system.ask("empty_postgresql_url"))


def _nobody_listens(system: System) -> None:
    system.proxy.close()


def _no_region(system: System) -> None:
    system.env.delenv("WORKHORSE_AWS_REGION")
    system.env.delenv("AWS_DEFAULT_REGION")


def _elsewhere(system: System) -> None:
    """No call is made, so none goes to anybody's real queue."""
    system.env.delenv("WORKHORSE_AWS_ENDPOINT_URL")
    arns = {name: f"arn:aws:sqs:eu-west-1:123456789012:{name}" for name in ("default", "mail")}
    system.env.setenv("WORKHORSE_SQS_QUEUE_URLS", json.dumps(arns))


def _no_credentials(system: System) -> None:
    system.env.delenv("AWS_ACCESS_KEY_ID")
    system.env.delenv("AWS_SECRET_ACCESS_KEY")


def _answers(answer: Answer, *operations: str) -> Callable[[System], None]:
    return lambda system: system.proxy.always(answer, *operations)


def _no_queue(system: System) -> None:
    system.queue("mail").delete()


def _short_visibility(system: System) -> None:
    system.set_attributes(VisibilityTimeout="29")


def _visibility_of_a_function(system: System) -> None:
    system.set_attributes(VisibilityTimeout="119")
    other = system.queue("mail")
    other._client.set_queue_attributes(QueueUrl=other.url, Attributes={"VisibilityTimeout": "120"})
    system.options = ("--function-timeout-seconds", "20")


def _delays(system: System) -> None:
    system.set_attributes(DelaySeconds="5")


def _low_receives(system: System) -> None:
    system.set_attributes(RedrivePolicy=_policy(system, 4))


def _bad_policy(system: System) -> None:
    attributes = {"VisibilityTimeout": "30", "RedrivePolicy": "no policy"}
    system.proxy.always(Answer(200, {"Attributes": attributes}), "GetQueueAttributes")


def _policy(system: System, receives: int) -> str:
    dead = system.endpoint.queue(f"dead-{system.prefix}default")
    found = system.endpoint.client.get_queue_attributes(
        QueueUrl=dead.url, AttributeNames=["QueueArn"]
    )
    arn = found["Attributes"]["QueueArn"]
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})


FAULTS: dict[str, tuple[Callable[[System], None], Code]] = {
    "a misspelt variable": (_misspelt, Code.SETTING_DOUBTFUL),
    "the store is away": (_away, Code.STORE_UNREACHABLE),
    "no tables": (_not_migrated, Code.SCHEMA_BEHIND),
    "old tables": (_old_schema, Code.SCHEMA_BEHIND),
    "newer tables": (_new_schema, Code.SCHEMA_AHEAD),
    "another environment": (_of_another_environment, Code.STORE_MISCONFIGURED),
    "a wrong clock": (_clock, Code.CLOCK_SKEW),
    "a bad annotation": (_bad_annotation, Code.TASKS_INVALID),
    "an unknown task": (_unknown_task, Code.UNKNOWN_TASK),
    "a paused queue": (_paused, Code.QUEUE_PAUSED),
    "a purged queue": (_purged, Code.RUNNABLE_WITHOUT_WAKEUPS),
    "no maintenance": (_never_maintained, Code.MAINTENANCE_NEVER),
    "late maintenance": (_maintained_long_ago, Code.MAINTENANCE_LATE),
    "no worker": (_nobody_works, Code.NO_WORKERS),
    "no worker of the queue": (_others_work, Code.NO_WORKERS),
    "no such lane": (_no_such_lane, Code.LANE_MISCONFIGURED),
    "no such name": (_no_such_name, Code.LANE_MISCONFIGURED),
    "a lane that breaks": (_lane_breaks, Code.LANE_FAILED),
    "a bell unheard": (_unheard, Code.BELL_UNHEARD),
    "nobody listens": (_nobody_listens, Code.ENDPOINT_UNREACHABLE),
    "no region": (_no_region, Code.REGION_MISSING),
    "another region": (_elsewhere, Code.WRONG_REGION),
    "no credentials": (_no_credentials, Code.CREDENTIALS_MISSING),
    "expired credentials": (_answers(error("ExpiredToken", 403)), Code.CREDENTIALS_EXPIRED),
    "refused credentials": (
        _answers(error("InvalidClientTokenId", 403)),
        Code.CREDENTIALS_REFUSED,
    ),
    "denied": (_answers(DENIED, "GetQueueAttributes"), Code.ACCESS_DENIED),
    "throttled": (_answers(error("ThrottlingException", 400)), Code.BROKER_FAILED),
    "no queue": (_no_queue, Code.QUEUE_MISSING),
    "a short visibility": (_short_visibility, Code.VISIBILITY_TOO_SHORT),
    "too short for the function": (_visibility_of_a_function, Code.VISIBILITY_TOO_SHORT),
    "a queue that delays": (_delays, Code.QUEUE_DELAYS),
    "few receives": (_low_receives, Code.LOW_MAX_RECEIVE_COUNT),
    "an unreadable policy": (_bad_policy, Code.UNREADABLE_REDRIVE_POLICY),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_no_other(system: System, fault: str) -> None:
    plant, code = FAULTS[fault]
    plant(system)

    exit_code, found = system.codes()

    assert found.get("warning", set()) | found.get("error", set()) == {code.value}
    assert "note" not in found
    assert exit_code == 1


# -- what is only worth knowing ------------------------------------------------------------------


def _no_dead_letters(system: System) -> None:
    queue = system.queue()
    queue.delete()
    system.endpoint.create_queue(queue.name)


def _dead_letters(system: System) -> None:
    system.endpoint.queue(f"dead-{system.prefix}default").put("a wakeup")


def _dead_letters_unseen(system: System) -> None:
    def deny(call: Any) -> Answer | None:
        name = str(call.parameters.get("QueueName", ""))
        return DENIED if name.startswith("dead-") else None

    system.proxy.fault = deny


def _died(system: System) -> None:
    system.beat(id="w-2")
    system.sql("update @processes set beat_at = :then where id = 'w-2'", timedelta(minutes=5))


def _two_builds(system: System) -> None:
    system.beat(id="w-2", build="2")
    system.beat(id="w-3", build="3")


def _a_function(system: System) -> None:
    system.beat(ProcessKind.FUNCTION, id="f-1", queues=("default",))


NOTES: dict[str, tuple[Callable[[System], None], Code]] = {
    "no dead-letter queue": (_no_dead_letters, Code.NO_DEAD_LETTER_QUEUE),
    "dead letters": (_dead_letters, Code.DEAD_LETTERS),
    "dead letters unseen": (_dead_letters_unseen, Code.DEAD_LETTERS_UNSEEN),
    "a worker that died": (_died, Code.STALE_PROCESSES),
    "two builds": (_two_builds, Code.MIXED_BUILDS),
    "a function": (_a_function, Code.FUNCTION_TIMEOUT_UNKNOWN),
}


@pytest.mark.parametrize("what", NOTES)
def test_what_is_only_worth_knowing_is_no_fault(system: System, what: str) -> None:
    plant, code = NOTES[what]
    plant(system)

    exit_code, found = system.codes()

    assert found["note"] == {code.value}
    assert set(found) == {"ok", "note"}
    assert exit_code == 0


def test_each_code_is_planted() -> None:
    """But for those that say what is well."""
    planted = {code for _plant, code in [*FAULTS.values(), *NOTES.values()]}
    assert planted | {each for each in Code if each.value.endswith("_ok")} == set(Code)


# -- what is no fault ----------------------------------------------------------------------------


def test_runs_that_became_ready_a_moment_ago_are_no_fault(system: System) -> None:
    """Neither without a worker nor without wakeups."""
    system.cli.ok("--app", "shop:app", "enqueue", "orders.charge", "{}")
    system.sql("delete from @processes")
    eventually(lambda: system.queue().counts().visible == 1)
    system.endpoint.client.purge_queue(QueueUrl=system.queue().url)
    assert system.codes()[0] == 0


def test_a_fleet_that_is_busy_between_two_top_ups_is_no_fault(system: System) -> None:
    """Its messages are used up, but the oldest run is another one at the second look."""
    _purged(system)

    def work(_seconds: float) -> None:
        system.sql("delete from @live where id = (select id from @live order by id limit 1)")
        system.sql("update @live set ready_at = :then", timedelta(minutes=9))

    system.env.setattr(doctor, "time", SimpleNamespace(sleep=work))
    assert system.codes()[0] == 0


def test_a_function_between_two_invocations_is_taken_for_alive(system: System) -> None:
    """Until it was not heard of for an hour."""
    _nobody_works(system)
    system.beat(ProcessKind.FUNCTION, id="f-1", queues=("default",))
    system.sql(
        "update @processes set beat_at = :then where id = 'f-1'",
        timedelta(milliseconds=KEPT_MS) - timedelta(minutes=1),
    )
    system.options = ("--function-timeout-seconds", "5")
    assert system.codes()[0] == 0
    system.sql(
        "update @processes set beat_at = :then where id = 'f-1'", timedelta(milliseconds=KEPT_MS)
    )
    assert system.codes()[1]["error"] == {Code.NO_WORKERS.value}


def test_a_session_that_waits_for_its_first_run_needs_no_wakeup(system: System) -> None:
    system.enqueue(2)
    system.sql("update @live set session = 's', line_at = :then")
    system.sql(
        "update @live set state = 'scheduled', ready_at = null, due_at = :then "
        "where id = (select id from @live order by id limit 1)",
        timedelta(hours=-1),
    )
    system.endpoint.client.purge_queue(QueueUrl=system.queue().url)
    assert system.codes()[0] == 0


# -- dead-letter queues --------------------------------------------------------------------------


def test_dead_letter_queues_are_listed_and_drained(system: System) -> None:
    system.enqueue()
    dead = system.endpoint.queue(f"dead-{system.prefix}default")
    (message,) = system.queue().take()
    dead.put(message["Body"])
    dead.put("no wakeup")

    listed = system.cli.ok("dlq", "list")
    looked = system.cli.ok("dlq", "drain", "--dry-run", "--json").json["queues"]
    told = system.cli.ok("dlq", "drain", "--queue", "default")
    again = system.cli.ok("dlq", "drain", "--max", "5", "--json").json["queues"]

    assert [line.split()[:3] for line in listed.lines[1:]] == [["default", dead.name, "2"]]
    assert looked[0]["outcomes"] == {"ready": 1, "unreadable": 1}
    assert (looked[0]["dry_run"], looked[0]["deleted"]) == (True, 0)
    assert told.lines[1].split()[:3] == ["default", dead.name, "2"]
    assert "1 ready, 1 unreadable" in told.out
    assert (again[0]["looked_at"], again[0]["ended"]) == (0, "empty")


def test_dead_letters_that_cannot_be_looked_at_are_bad_news(system: System) -> None:
    system.proxy.always(DENIED, "GetQueueAttributes")
    listed = system.cli("dlq", "list")
    drained = system.cli("dlq", "drain")
    assert listed.code == 1
    assert "sqs:GetQueueAttributes" in listed.out
    assert drained.code == 1
    assert "sqs:GetQueueAttributes" in drained.err


def test_a_lane_without_dead_letters_is_bad_input(cli: CommandLine, tmp_path: Path) -> None:
    told = cli("dlq", "drain")
    assert told.code == 2
    assert "has no dead-letter queues" in told.err
