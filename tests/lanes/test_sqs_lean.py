"""What the lean client does by itself, and botocore does for the others: compared with botocore."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import boto3
import pytest
from botocore import UNSIGNED
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import ClientError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lanes.sqs.clients import Endpoint, Timing
from lanes.sqs.faults import LaneClosedError, code_of, describe, is_unreached, queue_is_gone
from lanes.sqs.lean import LeanCalls
from lanes.sqs.resolving import resolve
from lanes.sqs.signing import Signer
from lanes.sqs.translating import translated
from tests.support.sqs import REGION
from tests.support.sqs_proxy import HANG_UP, UNAVAILABLE, Answer, Call, SqsProxy, error

ENTRIES = [{"Id": "0", "MessageBody": "a body"}]
CANNED = Answer(200, {"Successful": [], "Failed": []})
NO_MESSAGES = Answer(200, {})


@asynccontextmanager
async def lean(url: str | None, timing: Timing | None = None) -> AsyncIterator[LeanCalls]:
    calls = LeanCalls(Endpoint(url, REGION), timing or Timing())
    try:
        yield calls
    finally:
        await calls.close()


async def raised(call: Any) -> Exception:
    try:
        await call
    except Exception as error:  # noqa: BLE001  (it is what the test asks for)
        return error
    raise AssertionError("nothing was raised")


# -- signatures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "a+session/token=="])
@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("sqs.eu-central-1.amazonaws.com", "/"),
        ("127.0.0.1:4566", "/"),
        ("localhost:4566", "/under/a%20path/~x"),
    ],
)
def test_a_signature_is_botocores(
    host: str, path: str, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over two days and two keys, since the day's key is kept."""
    signer = Signer(host, path, "eu-central-1")
    for day, secret in ((1, "one"), (1, "one"), (2, "one"), (2, "two")):
        now = datetime(2026, 12, day, 23, 59, 59, tzinfo=UTC)
        body = json.dumps({"QueueUrl": "é", "day": day}).encode()
        keys = Credentials("AKIDEXAMPLE", secret, token)

        ours = signer.headers(keys, "SendMessageBatch", body, now)

        monkeypatch.setattr("botocore.auth.get_current_datetime", lambda now=now: now)
        given = {"Content-Type": ours["content-type"], "X-Amz-Target": ours["x-amz-target"]}
        request = AWSRequest("POST", f"http://{host}{path}", given, body)
        SigV4Auth(keys, "sqs", "eu-central-1").add_auth(request)
        assert ours["authorization"] == request.headers["Authorization"]
        assert ours["x-amz-date"] == request.headers["X-Amz-Date"]
        assert ours.get("x-amz-security-token") == request.headers.get("X-Amz-Security-Token")


# -- where SQS is --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"AWS_ENDPOINT_URL": "http://localhost:4566"},
        {"AWS_ENDPOINT_URL": "http://localhost:1", "AWS_ENDPOINT_URL_SQS": "http://localhost:2/x"},
        {"AWS_ENDPOINT_URL": "http://localhost:1", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
        {"AWS_USE_FIPS_ENDPOINT": "true"},
        {"AWS_USE_DUALSTACK_ENDPOINT": "true"},
    ],
    ids=lambda environment: "+".join(environment) or "none",
)
@pytest.mark.parametrize("region", ["eu-central-1", "cn-north-1", "us-gov-west-1"])
def test_the_endpoint_is_where_botocore_would_send_to(
    environment: dict[str, str], region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found: list[str] = []

    def note(request: Any, **_: Any) -> None:
        found.append(request.url)
        raise KeyboardInterrupt

    client = boto3.session.Session(region_name=region).client("sqs")
    client.meta.events.register("before-send.sqs", note)
    with pytest.raises(KeyboardInterrupt):
        client.list_queues()

    place = resolve(Endpoint(None, region))

    assert [place.url.rstrip("/")] == [url.rstrip("/") for url in found]
    assert place.region == region
    assert (place.tls is not None) == place.url.startswith("https:")


def test_the_settings_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://localhost:1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert resolve(Endpoint("http://localhost:2", None)).url == "http://localhost:2"
    assert resolve(Endpoint(None, None)).region == "eu-west-1"
    assert resolve(Endpoint(None, "eu-north-1")).region == "eu-north-1"


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("https://sqs.eu-west-1.amazonaws.com", "sqs.eu-west-1.amazonaws.com", "/"),
        ("https://sqs.eu-west-1.amazonaws.com:443/", "sqs.eu-west-1.amazonaws.com", "/"),
        ("http://localhost:80/x", "localhost", "/x"),
        ("http://localhost:443", "localhost:443", "/"),
    ],
)
def test_the_host_is_named_as_it_is_sent(url: str, host: str, path: str) -> None:
    place = resolve(Endpoint(url, REGION))
    assert (place.host, place.path) == (host, path)


def test_a_proxy_is_taken_from_the_environment(
    proxy: SqsProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And left out where the environment says so."""
    proxy.always(CANNED)
    monkeypatch.setenv("http_proxy", proxy.url)

    async def send() -> Any:
        async with lean("http://sqs.invalid", Timing(attempts=1)) as calls:
            return await calls.send_batch("http://sqs.invalid/1/q", ENTRIES)

    assert asyncio.run(send()) == []
    assert proxy.counts() == {"SendMessageBatch": 1}

    monkeypatch.setenv("no_proxy", "sqs.invalid")
    assert is_unreached(asyncio.run(raised(send())))
    assert proxy.counts() == {"SendMessageBatch": 1}


# -- certificates --------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of 127.0.0.1 that nobody has signed but itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = tmp_path / "certificate.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@contextmanager
def https_endpoint(certificate: Path) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            content = json.dumps(CANNED.body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base's name)
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_endpoint_shows_a_certificate_that_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either by the usual authorities or by the bundle that is configured."""

    async def send(url: str) -> Any:
        async with lean(url) as calls:
            return await calls.send_batch(f"{url}/1/q", ENTRIES)

    with https_endpoint(certificate) as url:
        refused = asyncio.run(raised(send(url)))
        assert describe(refused) == "SQS was not reached (SSLError)"

        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        assert asyncio.run(send(url)) == []


# -- credentials ---------------------------------------------------------------------------------


def test_what_may_ask_a_network_for_credentials_does_not_hold_up_the_loop(
    proxy: SqsProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do calls ask for them again while they are good."""
    proxy.always(CANNED)
    threads: list[threading.Thread] = []

    def fresh() -> dict[str, str]:
        threads.append(threading.current_thread())
        minutes = 1 if len(threads) == 1 else 60
        expires = datetime.now(UTC) + timedelta(minutes=minutes)
        return {
            "access_key": f"KEY{len(threads)}",
            "secret_key": "testing",
            "token": "testing",
            "expiry_time": expires.isoformat(),
        }

    def chain(session: object) -> RefreshableCredentials:
        return RefreshableCredentials.create_from_metadata(fresh(), fresh, "test")

    monkeypatch.setattr("botocore.session.Session.get_credentials", chain)

    async def send() -> None:
        async with lean(proxy.url) as calls:
            for _ in range(3):
                await calls.send_batch("http://sqs.invalid/1/q", ENTRIES)

    asyncio.run(send())
    assert [call.access_key for call in proxy.made()] == ["KEY2"] * 3
    assert len(threads) == 2
    assert threading.current_thread() not in threads


def test_credentials_that_come_later_are_found(
    proxy: SqsProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxy.always(CANNED)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    async def main() -> None:
        async with lean(proxy.url) as calls:
            none = await raised(calls.send_batch("http://sqs.invalid/1/q", ENTRIES))
            assert type(none).__name__ == "NoCredentialsError"
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "LATER")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
            await calls.send_batch("http://sqs.invalid/1/q", ENTRIES)

    asyncio.run(main())
    assert [call.access_key for call in proxy.made()] == ["LATER"]


# -- what goes wrong -----------------------------------------------------------------------------


def refused_at(clock: datetime, code: str = "InvalidSignatureException") -> Callable[[Call], Any]:
    """Answer as an endpoint whose clock shows `clock`, and that refuses another day's signature."""

    def fault(call: Call) -> Answer:
        if f"/{clock:%Y%m%d}/" in call.authorization:
            return CANNED
        refusal = error(code, 403)
        return Answer(403, refusal.body, {"Date": format_datetime(clock, usegmt=True)})

    return fault


@pytest.mark.parametrize("code", ["InvalidSignatureException", "RequestExpired"])
def test_a_clock_that_is_wrong_is_corrected_by_sqs_own(proxy: SqsProxy, code: str) -> None:
    """Once: later calls are signed right away."""
    proxy.fault = refused_at(datetime.now(UTC) + timedelta(days=3), code)

    async def main() -> None:
        async with lean(proxy.url, Timing(attempts=1)) as calls:
            for _ in range(2):
                assert await calls.send_batch("http://sqs.invalid/1/q", ENTRIES) == []

    asyncio.run(main())
    assert len(proxy.made()) == 3


def test_a_signature_that_is_refused_by_a_clock_like_ours_is_not_repeated(proxy: SqsProxy) -> None:
    refusal = error("InvalidSignatureException", 403)
    date = {"Date": format_datetime(datetime.now(UTC), usegmt=True)}
    proxy.always(Answer(403, refusal.body, date))

    async def main() -> Exception:
        async with lean(proxy.url) as calls:
            return await raised(calls.send_batch("http://sqs.invalid/1/q", ENTRIES))

    assert code_of(asyncio.run(main())) == "InvalidSignatureException"
    assert len(proxy.made()) == 1


def test_a_receive_is_not_spoilt_by_a_connection_that_was_closed_while_it_lay_idle(
    proxy: SqsProxy,
) -> None:
    """But for one that was just opened: a receive is one try."""
    hang_up_on = {1}

    def fault(call: Call) -> Answer | str:
        return HANG_UP if len(proxy.calls) - 1 in hang_up_on else NO_MESSAGES

    proxy.fault = fault

    async def main() -> Exception:
        async with lean(proxy.url) as calls:
            for _ in range(2):
                assert await calls.receive("http://sqs.invalid/1/q", 10, 0) == []
            assert len(proxy.made()) == 3
            hang_up_on.update(range(3, 9))
            await raised(calls.receive("http://sqs.invalid/1/q", 10, 0))
            assert len(proxy.made()) == 5
            return await raised(calls.receive("http://sqs.invalid/1/q", 10, 0))

    assert type(asyncio.run(main())).__name__ == "ConnectionClosedError"
    assert len(proxy.made()) == 6


@pytest.mark.parametrize(
    ("answer", "tries", "code"),
    [
        (UNAVAILABLE, 2, "ServiceUnavailable"),
        (error("ThrottlingException"), 2, "ThrottlingException"),
        (error("RequestThrottled", 403, "RequestThrottled"), 2, "RequestThrottled"),
        (error("AccessDenied", 403), 1, "AccessDenied"),
        (Answer(502, {}), 2, "502"),
    ],
)
def test_what_may_pass_is_tried_twice(
    proxy: SqsProxy, answer: Answer, tries: int, code: str
) -> None:
    proxy.always(answer)

    async def main() -> Exception:
        async with lean(proxy.url) as calls:
            return await raised(calls.send_batch("http://sqs.invalid/1/q", ENTRIES))

    failed = asyncio.run(main())
    assert isinstance(failed, ClientError)
    assert code_of(failed) == code
    assert describe(failed) == f"SQS answered SendMessageBatch with {code} (HTTP {answer.status})"
    assert "secret" not in str(failed)
    assert len(proxy.made()) == tries


def test_a_user_in_the_endpoints_url_is_left_out(proxy: SqsProxy) -> None:
    """Also of what an error says: a password may stand beside it."""
    url = proxy.url.replace("//", "//user:secret@")

    async def main() -> None:
        proxy.always(CANNED)
        async with lean(url) as calls:
            assert await calls.send_batch("http://sqs.invalid/1/q", ENTRIES) == []
        proxy.always(HANG_UP)
        async with lean(url) as calls:
            assert "secret" not in str(
                await raised(calls.send_batch("http://sqs.invalid/1/q", ENTRIES))
            )

    asyncio.run(main())


def test_an_error_is_named_as_botocore_names_it(proxy: SqsProxy) -> None:
    """The same refusal over either client, from the same answer."""
    proxy.always(error("QueueDoesNotExist", 400, "AWS.SimpleQueueService.NonExistentQueue"))
    client = boto3.session.Session(region_name=REGION).client(
        "sqs", endpoint_url=proxy.url, config=Config(signature_version=UNSIGNED)
    )
    with pytest.raises(ClientError) as theirs:
        client.receive_message(QueueUrl=f"{proxy.url}/1/q")

    async def main() -> Exception:
        async with lean(proxy.url) as calls:
            return await raised(calls.receive(f"{proxy.url}/1/q", 10, 0))

    ours = asyncio.run(main())
    assert (queue_is_gone(ours), queue_is_gone(theirs.value)) == (True, True)
    assert describe(ours).replace("QueueDoesNotExist", "NonExistentQueue") == describe(theirs.value)


KEY: Any = SimpleNamespace(host="sqs.invalid", port=443, ssl=True, is_ssl=True)
"""As much of a connection's key as aiohttp's errors look at."""


@pytest.mark.parametrize(
    ("raised_by_aiohttp", "name"),
    [
        (aiohttp.ConnectionTimeoutError("x"), "ConnectTimeoutError"),
        (aiohttp.SocketTimeoutError("x"), "ReadTimeoutError"),
        (aiohttp.ServerDisconnectedError(), "ConnectionClosedError"),
        (aiohttp.ClientOSError(104, "x"), "ConnectionClosedError"),
        (aiohttp.ClientPayloadError("x"), "ConnectionClosedError"),
        (aiohttp.ClientConnectorError(KEY, OSError(111, "x")), "EndpointConnectionError"),
        (aiohttp.ClientProxyConnectionError(KEY, OSError(1, "x")), "ProxyConnectionError"),
        (aiohttp.ClientConnectorSSLError(KEY, OSError(1, "x")), "SSLError"),
        (aiohttp.InvalidURL("x"), "HTTPClientError"),
        (ValueError("no JSON"), "HTTPClientError"),
        (LaneClosedError(), "LaneClosedError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_errors_of_aiohttp_are_translated(raised_by_aiohttp: Exception, name: str) -> None:
    found = translated(raised_by_aiohttp, "https://sqs.invalid", "http://user:secret@proxy:1")
    assert type(found).__name__ == name
    assert "secret" not in str(found)


def test_a_closed_client_makes_no_more_calls(proxy: SqsProxy) -> None:
    async def main() -> Exception:
        async with lean(proxy.url) as calls:
            await calls.prepare()
            await calls.close()
            return await raised(calls.send_batch("http://sqs.invalid/1/q", ENTRIES))

    assert isinstance(asyncio.run(main()), LaneClosedError)
    assert not proxy.made()
