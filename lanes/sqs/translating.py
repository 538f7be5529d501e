"""What goes wrong with a request over aiohttp, as botocore would raise it.

So everything above the seam knows one set of errors; see faults.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from lanes.sqs.faults import code_of

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

_AGAIN: Final = (
    "PriorRequestNotComplete",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",
    "RequestTimeoutException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
)
_PASSING: Final = (500, 502, 503, 504)
_UNTIMELY: Final = (
    "InvalidSignatureException",
    "RequestExpired",
    "RequestInTheFuture",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
)


def refusal(operation: str, status: int, headers: Mapping[str, str], content: bytes) -> ClientError:
    """Return the error that an answer other than 200 stands for."""
    from botocore.exceptions import ClientError

    try:
        code = json.loads(content)["__type"]
    except (ValueError, TypeError, KeyError):
        code = headers.get("x-amzn-errortype", str(status)).partition(":")[0]
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": {"date": headers.get("date", "")}}
    answer: Any = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": metadata}
    return ClientError(answer, operation)


def translated(error: Exception, url: str, proxy: str | None) -> Exception:
    """Return botocore's error for one of aiohttp's; others stay as they are."""
    import aiohttp
    from botocore import exceptions

    match error:
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return exceptions.ProxyConnectionError(proxy_url=(proxy or "").rpartition("@")[2])
        case aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError():
            return exceptions.SSLError(endpoint_url=url, error=error)
        case aiohttp.ConnectionTimeoutError():
            return exceptions.ConnectTimeoutError(endpoint_url=url)
        case aiohttp.ServerTimeoutError():
            return exceptions.ReadTimeoutError(endpoint_url=url)
        case aiohttp.ClientConnectorError():
            return exceptions.EndpointConnectionError(endpoint_url=url)
        case aiohttp.ClientConnectionError() | aiohttp.ClientPayloadError() | ConnectionError():
            return exceptions.ConnectionClosedError(endpoint_url=url)
        case aiohttp.ClientError():
            return exceptions.HTTPClientError(error=type(error).__name__)
        case ValueError():
            return exceptions.HTTPClientError(error="the answer is no JSON")
        case _:
            return error


def hung_up(error: Exception) -> bool:
    """Whether the other side closed the connection before it had answered."""
    return type(error).__name__ == "ConnectionClosedError"


def may_pass(error: Exception) -> bool:
    """Whether the same request may succeed when it is made again."""
    from botocore.exceptions import ConnectionError as UnreachedError
    from botocore.exceptions import HTTPClientError

    status = _metadata(error).get("HTTPStatusCode")
    if status is not None:
        return status in _PASSING or code_of(error) in _AGAIN
    return isinstance(error, UnreachedError | HTTPClientError)


WRONG_CLOCK: Final = timedelta(minutes=4)
"""A clock that is as wrong as this is why a signature is refused; SQS allows five minutes."""


def sqs_clock(error: BaseException) -> datetime | None:
    """Return what SQS's clock said when it refused a request that was signed too early or late.

    None where the reason is another, or SQS did not say.
    """
    if code_of(error) not in _UNTIMELY:
        return None
    try:
        found = parsedate_to_datetime(_metadata(error)["HTTPHeaders"]["date"])
    except (KeyError, TypeError, ValueError):
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _metadata(error: BaseException) -> dict[str, Any]:
    response = getattr(error, "response", None)
    return response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
