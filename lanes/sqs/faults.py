"""What an error of the SDK means, said without bodies, credentials or signed headers.

Nothing here imports botocore: its errors are known by their shape, and a process that never calls
SQS does not pay for the import.
"""

from __future__ import annotations

import re
from typing import Final

from workhorse.domain.showing import shown

_GONE: Final = ("NonExistentQueue", "QueueDoesNotExist")
_DENIED: Final = (
    "AccessDenied",
    "AccessDeniedException",
    "AuthorizationError",
    "KmsAccessDenied",
)
_EXPIRED: Final = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
_LAPSED: Final = ("TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError")
_REFUSED: Final = (
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "IncompleteSignature",
    "MissingAuthenticationToken",
)
_ABSENT: Final = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError")
_UNREACHED: Final = (
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ConnectionClosedError",
    "TimeoutError",
)
_OF_READING: Final = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError
)  # fmt: skip
"""Python's own; the SDK's errors that derive from them are something else."""

_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class LaneClosedError(Exception):
    """The lane was closed; it makes no more calls."""


def code_of(error: BaseException) -> str | None:
    """Return the service's error code, without its namespace; None where it never answered."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    code = response.get("Error", {}).get("Code")
    # Two spellings reach us: `QueueDoesNotExist` and `AWS.SimpleQueueService.NonExistentQueue`.
    return str(code).rsplit(".", 1)[-1].rsplit("#", 1)[-1] if code else None


def queue_is_gone(error: BaseException) -> bool:
    """Whether SQS says that there is no such queue."""
    return code_of(error) in _GONE


def is_denied(error: BaseException) -> bool:
    """Whether the credentials are good but may not do this."""
    return code_of(error) in _DENIED


def operation_of(error: BaseException) -> str | None:
    """Return the operation that the service refused, as its API spells it."""
    operation = getattr(error, "operation_name", None)
    return str(operation) if operation else None


def credentials_have_expired(error: BaseException) -> bool:
    """Whether the credentials were good once."""
    return code_of(error) in _EXPIRED or type(error).__name__ in _LAPSED


def trouble_with_credentials(error: BaseException) -> str | None:
    """Return what is wrong with the credentials, a part of a sentence; None when nothing is."""
    code, name = code_of(error), type(error).__name__
    if credentials_have_expired(error):
        return "the AWS credentials have expired"
    if code in _REFUSED:
        return f"SQS does not accept the AWS credentials ({code})"
    if name in _ABSENT:
        return "there are no AWS credentials"
    return None


def is_unreached(error: BaseException) -> bool:
    """Whether the endpoint could not be reached, or did not answer in time."""
    return type(error).__name__ in _UNREACHED


def describe(error: BaseException) -> str:
    """Return one line about an error, fit for logs.

    The service's own messages are left out: for a bad signature they repeat the signed headers,
    the session token among them, and for a bad parameter the parameter.
    """
    code = code_of(error)
    if code is not None:
        operation = getattr(error, "operation_name", None) or "a call"
        metadata = getattr(error, "response", {}).get("ResponseMetadata", {})
        status = metadata.get("HTTPStatusCode")
        # Whoever answers may not be SQS: a code that is none is shown as the text that it is.
        plain = code if _CODE.fullmatch(code) else shown(code)
        return f"SQS answered {operation} with {plain}" + (f" (HTTP {status})" if status else "")
    if isinstance(error, LaneClosedError):
        return "the lane is closed"
    if type(error) in _OF_READING:
        return f"the answer of SQS cannot be read ({type(error).__name__})"
    return f"SQS was not reached ({type(error).__name__})"
