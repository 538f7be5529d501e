"""Secrets of AWS Secrets Manager, for what must not stand in a setting.

No lane: it is here since this is where AWS's clients are. It is found by the entry point `aws` of
the group `workhorse.secrets`, and imported only where a setting names a secret.
"""

from __future__ import annotations

from typing import Any, Self

from workhorse.settings import Settings


class AwsSecrets:
    """Reads secrets with the usual chain of credentials.

    Args:
        region: Where a secret is that is not named by an ARN; None leaves it to the SDK.
    """

    def __init__(self, region: str | None) -> None:
        self._region = region

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Return a reader; the SDK is not imported and no call is made yet."""
        return cls(settings.aws_region)

    def read(self, name: str) -> str:
        """Return a secret's current text, within a few seconds.

        Args:
            name: Its ARN or name.

        Raises:
            Exception: Whatever the SDK raises.
        """
        # With a client of its own each time: it is wanted seldom, and one that was kept, or a lock
        # around it, could not be used after a fork.
        client = self._client(name)
        try:
            text = client.get_secret_value(SecretId=name)["SecretString"]
            if not isinstance(text, str):
                raise TypeError("the secret's value is no text")
            return text
        finally:
            client.close()

    def _client(self, name: str) -> Any:
        import boto3
        from botocore.config import Config

        # A session of its own too: making clients of one is not safe in threads.
        of_arn = name.split(":")[3] if name.startswith("arn:") and name.count(":") >= 6 else ""
        session = boto3.session.Session(region_name=of_arn or self._region)
        return session.client(
            "secretsmanager",
            config=Config(
                connect_timeout=2,
                read_timeout=3,
                retries={"mode": "standard", "total_max_attempts": 2},
            ),
        )
