"""Settings: arguments before the environment before defaults; errors name and never show."""

from typing import Any

import pytest

from workhorse import Workhorse
from workhorse.errors import ConfigurationError
from workhorse.settings import Settings, doubts, load_settings


def test_defaults_need_nothing_from_outside() -> None:
    settings = load_settings()

    assert settings.lane == "polling"
    assert settings.queues == ("default",)
    assert settings.lease_seconds == 30
    assert settings.concurrency == 10
    assert settings.poll_ms == 50
    assert settings.drain_seconds == 25
    assert settings.hint_stride == 10
    assert settings.scoped_schema == "workhorse"
    assert settings.database_url.get_secret_value().startswith("sqlite:///")


def test_each_setting_is_read_from_a_variable_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {
        "DATABASE_URL": "postgresql://user@host/db",
        "SCHEMA": "jobs",
        "ENVIRONMENT": "staging",
        "LANE": "sqs",
        "QUEUES": "mail, reports,mail,",
        "LEASE_SECONDS": "12.5",
        "CONCURRENCY": "4",
        "HEALTH_PORT": "0",
        "POOLER": "true",
        "BUILD": "2026.11.30-7",
        "NEWEST_BUILD_ONLY": "yes",
        "SQS_QUEUE_URLS": '{"mail": "https://queue.example/1/mail"}',
    }
    for name, value in told.items():
        monkeypatch.setenv(f"WORKHORSE_{name}", value)

    settings = load_settings()

    assert settings.database_url.get_secret_value() == "postgresql://user@host/db"
    assert settings.schema_name == "jobs"
    assert settings.lane == "sqs"
    assert settings.queues == ("mail", "reports")
    assert settings.lease_seconds == 12.5
    assert settings.concurrency == 4
    assert settings.health_port == 0
    assert settings.pooler is True
    assert settings.build == "2026.11.30-7"
    assert settings.newest_build_only is True
    assert settings.sqs_queue_urls == {"mail": "https://queue.example/1/mail"}


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("WORKHORSE_DATABSE_URL", "WORKHORSE_DATABASE_URL"),
        ("WORKHORSE_DB_URL", "WORKHORSE_DATABASE_URL"),
        ("WORKHORSE_QUEUE", "WORKHORSE_QUEUES"),
        ("workhorse_shema", "WORKHORSE_SCHEMA"),
        ("WORKHORSE_REGION", "WORKHORSE_AWS_REGION"),
        ("WORKHORSE_SCHEMA_NAME", "WORKHORSE_SCHEMA"),
    ],
)
def test_a_variable_that_comes_near_a_setting_is_doubted(
    monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    monkeypatch.setenv(variable, "secret")
    assert doubts(load_settings()) == [
        (f"the variable {variable} is no setting, and is ignored", f"{meant} may be meant")
    ]


def test_settings_and_the_variables_of_others_are_not_doubted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "WORKHORSE_DATABASE_URL": "postgresql://user@host/db",
        "WORKHORSE_LANE": "sqs",
        "workhorse_queues": "mail",
        "WORKHORSE_SCHEMA": "jobs",
        "WORKHORSE_OURS": "1",
        "DATABSE_URL": "x",
    }.items():
        monkeypatch.setenv(name, value)
    assert doubts(load_settings()) == []


def test_a_store_that_was_left_to_its_default_is_doubted_where_wakeups_leave_the_machine() -> None:
    (doubt,) = doubts(load_settings(lane="sqs"))
    assert "database_url is not set" in doubt.message
    assert "WORKHORSE_DATABASE_URL" in doubt.advice
    assert doubts(load_settings(lane="sqs", database_url="sqlite:///mine.sqlite3")) == []
    assert doubts(load_settings(lane="memory")) == []


def test_a_doubt_is_told_once_in_a_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("workhorse.settings._told", set())
    monkeypatch.setenv("WORKHORSE_DATABSE_URL", "secret")
    for _ in range(2):
        Workhorse().close()
    (told,) = caplog.messages
    assert "WORKHORSE_DATABSE_URL is no setting" in told
    assert "secret" not in told


def test_the_ecs_agent_is_found_where_ecs_says_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().ecs_agent_uri is None

    monkeypatch.setenv("ECS_AGENT_URI", "http://169.254.170.2/api/task")

    assert load_settings().ecs_agent_uri == "http://169.254.170.2/api/task"
    assert load_settings(ecs_agent_uri="http://127.0.0.1:1").ecs_agent_uri == "http://127.0.0.1:1"


def test_an_argument_comes_before_the_environment_and_none_means_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKHORSE_LANE", "sqs")
    monkeypatch.setenv("WORKHORSE_SCHEMA", "from_outside")

    settings = load_settings(lane="memory", schema="given", queues=["a", "b"], concurrency=None)

    assert (settings.lane, settings.schema_name, settings.queues) == ("memory", "given", ("a", "b"))
    assert settings.concurrency == 10
    assert load_settings(lane=None, schema=None).lane == "sqs"
    assert load_settings().schema_name == "from_outside"


def test_a_region_or_a_secret_that_is_set_to_nothing_is_not_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKHORSE_AWS_REGION", "")
    monkeypatch.setenv("WORKHORSE_DATABASE_SECRET", "")
    settings = load_settings()
    assert (settings.aws_region, settings.database_secret) == (None, None)


def test_an_environment_scopes_schema_and_queues() -> None:
    settings = load_settings(environment="staging")

    assert settings.scoped_schema == "workhorse_staging"
    assert settings.scoped_prefix == "workhorse-staging-"
    assert load_settings().scoped_prefix == "workhorse-"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"lease_seconds": 0.1}, "lease_seconds"),
        ({"lease_seconds": "soon"}, "lease_seconds"),
        ({"concurrency": 0}, "concurrency"),
        ({"queues": "Not A Queue"}, "queues"),
        ({"environment": "UP"}, "environment"),
        ({"schema": "no-dash"}, "SCHEMA"),
        ({"sqs_client": "curl"}, "sqs_client"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"settings: .*{told}"):
        load_settings(**given)


def test_a_wrong_variable_is_named_and_its_value_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKHORSE_CONCURRENCY", "s3cret")

    with pytest.raises(ConfigurationError, match="concurrency") as refused:
        load_settings()

    assert "s3cret" not in str(refused.value)


def test_neither_settings_nor_their_errors_show_credentials() -> None:
    settings = load_settings(database_url="postgresql://user:s3cret@host/db")

    assert "s3cret" not in repr(settings)
    assert "s3cret" not in str(settings)


def test_settings_do_not_change() -> None:
    settings = load_settings()

    with pytest.raises(ValueError, match="frozen"):
        settings.lane = "memory"  # type: ignore[misc]


def test_every_setting_has_a_default_so_that_a_laptop_needs_none() -> None:
    assert all(not field.is_required() for field in Settings.model_fields.values())
