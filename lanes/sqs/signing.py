"""AWS Signature Version 4 for the one shape of request that the lean client makes.

That is a POST of JSON without a query. botocore's signer does any request, and works out the key of
the day anew for each of them; this one keeps what stays the same.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime
from typing import Final, Protocol
from urllib.parse import quote

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_CONTENT_TYPE: Final = "application/x-amz-json-1.0"


class Keys(Protocol):
    """Credentials, all of the same moment, such as botocore's frozen ones."""

    @property
    def access_key(self) -> str:
        """Which key it is; no secret."""
        ...

    @property
    def secret_key(self) -> str:
        """What is signed with."""
        ...

    @property
    def token(self) -> str | None:
        """The session's token, of keys that expire."""
        ...


class Signer:
    """Signs requests to one endpoint; for one thread.

    Args:
        host: The endpoint's host, with its port where it is not the scheme's own.
        path: The endpoint's path; `/` where it has none.
        region: The region that the requests are for.
    """

    def __init__(self, host: str, path: str, region: str) -> None:
        self._host = host
        self._path = quote(path, safe="/")
        self._region = region
        self._kept: tuple[str, str] | None = None
        self._key = b""

    def headers(self, keys: Keys, operation: str, body: bytes, now: datetime) -> dict[str, str]:
        """Return the headers of a request, its signature among them.

        Args:
            keys: Whose request it is.
            operation: What it asks for, as the API spells it.
            body: What is sent.
            now: The time in UTC, as near to SQS's own as is known.
        """
        moment = now.strftime("%Y%m%dT%H%M%SZ")
        # In the order of the alphabet, since they are signed so.
        signed = {"content-type": _CONTENT_TYPE, "host": self._host, "x-amz-date": moment}
        if keys.token:
            signed["x-amz-security-token"] = keys.token
        signed["x-amz-target"] = f"AmazonSQS.{operation}"
        names = ";".join(signed)
        lines = "\n".join(f"{name}:{value}" for name, value in signed.items())
        request = f"POST\n{self._path}\n\n{lines}\n\n{names}\n{_sha256(body)}"
        scope = f"{moment[:8]}/{self._region}/sqs/aws4_request"
        text = f"{_ALGORITHM}\n{moment}\n{scope}\n{_sha256(request.encode())}"
        key = self._key_of(keys.secret_key, moment[:8])
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        authorization = (
            f"{_ALGORITHM} Credential={keys.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return signed | {"authorization": authorization}

    def _key_of(self, secret_key: str, day: str) -> bytes:
        if self._kept != (secret_key, day):
            key = f"AWS4{secret_key}".encode()
            for part in (day, self._region, "sqs", "aws4_request"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            self._kept, self._key = (secret_key, day), key
        return self._key


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
