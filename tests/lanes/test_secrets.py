"""Secrets of AWS Secrets Manager, by name and by ARN, and an app whose login is in one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from lanes.secrets import AwsSecrets
from workhorse import Workhorse
from workhorse.client.discovery import open_secrets
from workhorse.errors import ConfigurationError
from workhorse.settings import load_settings
from workhorse.store.base.credentials import Login

VALUE = json.dumps({"username": "me", "password": "hunter2"})


@pytest.fixture(autouse=True)
def _aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        yield


def a_secret(region: str) -> str:
    client = boto3.client("secretsmanager", region_name=region)
    return str(client.create_secret(Name="db", SecretString=VALUE)["ARN"])


def test_a_secret_is_read_by_its_name_in_the_region_of_the_settings() -> None:
    a_secret("eu-central-1")

    assert open_secrets("aws", load_settings(aws_region="eu-central-1")).read("db") == VALUE


def test_an_arn_says_the_region_itself() -> None:
    arn = a_secret("eu-west-1")

    assert AwsSecrets("us-east-1").read(arn) == VALUE


def test_a_read_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the child of a fork, which would wait for a lock that nobody there gives back."""
    arn = a_secret("us-east-1")
    secrets = AwsSecrets(None)
    client, hangs, goes_on = secrets._client, threading.Event(), threading.Event()

    def hanging(name: str) -> object:
        if not hangs.is_set():
            hangs.set()
            assert goes_on.wait(30)
        return client(name)

    monkeypatch.setattr(secrets, "_client", hanging)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(secrets.read, arn)
        try:
            assert hangs.wait(10)
            assert threads.submit(secrets.read, arn).result(20) == VALUE
        finally:
            goes_on.set()
        assert first.result(20) == VALUE


def test_what_is_not_there_is_not_hidden() -> None:
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        AwsSecrets(None).read("db")


def test_an_app_logs_in_with_its_secret() -> None:
    arn = a_secret("us-east-1")
    app = Workhorse(database_url="postgresql://db.invalid/app", database_secret=arn)
    credentials = app._resources.store().target.credentials
    assert credentials is not None

    logins: list[Login] = []
    credentials.connect(logins.append)

    assert logins == [Login("me", "hunter2")]
    app.close()


def test_a_kind_of_secret_that_nobody_reads_is_said() -> None:
    with pytest.raises(ConfigurationError, match="0 installed packages read secrets of 'vault'"):
        open_secrets("vault", load_settings())
