"""The seam's calls over aiohttp; botocore says where SQS is and who asks, and no more.

A call of boto3 or aioboto3 costs several times its HTTP request, for a generality that five calls
of one service do not need. What of it matters is done here: signatures, two tries, time-outs, a
clock that is wrong, and errors as botocore raises them.

Source: docs/adr/0020-a-lean-client-for-sqs.md
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lanes.sqs.clients import Calls, Endpoint, Timing, user_agent_of
from lanes.sqs.faults import LaneClosedError
from lanes.sqs.resolving import Place, resolve
from lanes.sqs.runners import ThreadRunner
from lanes.sqs.signing import Keys, Signer
from lanes.sqs.translating import WRONG_CLOCK, hung_up, may_pass, refusal, sqs_clock, translated

if TYPE_CHECKING:
    import aiohttp
    from botocore.credentials import Credentials

T = TypeVar("T")

_KEEP_ALIVE_S: Final = 60.0
_MOST_SHORT: Final = 10
"""The most connections for short calls; receives may have as many as there are receivers."""
_REST_S: Final = 0.25
"""The most that is rested before a second try."""


class _Course:
    """What became of a request besides its answer; aiohttp tells it as it goes."""

    reused = False
    """Whether it went out over a connection that had been used before."""


class LeanCalls(Calls):
    """Over aiohttp, on one event loop."""

    def __init__(self, endpoint: Endpoint, timing: Timing) -> None:
        super().__init__(endpoint, timing)
        self._lock = asyncio.Lock()
        self._apart = ThreadRunner("lean", most=8)
        self._line: _Line | None = None
        self._credentials: Credentials | None = None
        self._ahead = timedelta()
        """How far SQS's clock is ahead of ours, where that mattered."""

    async def prepare(self) -> None:
        """Find out where SQS is."""
        await self._ready()

    async def close(self) -> None:
        """Let go of the connections."""
        async with self._lock:
            self._closed = True
            line, self._line = self._line, None
            self._apart.close()
            if line is not None:
                await line.close()

    async def _call(self, operation: str, *, long: bool = False, **parameters: Any) -> Any:
        line = await self._ready()
        named = "".join(word.capitalize() for word in operation.split("_"))
        body = json.dumps(parameters, separators=(",", ":")).encode()
        tries = 1 if long else self._timing.attempts
        renewed = corrected = False
        while True:
            keys = await self._keys(line)
            course = _Course()
            try:
                now = datetime.now(UTC) + self._ahead
                headers = line.signer.headers(keys, named, body, now)
                return await line.post(named, headers, body, course, long=long)
            except Exception as error:
                if long and course.reused and not renewed and hung_up(error):
                    # The other side had closed a connection that lay idle, which is no reason for
                    # a worker to rest; short calls have their second try for it.
                    renewed = True
                    continue
                if not corrected and self._correct_clock(error):
                    corrected = True
                    continue
                tries -= 1
                if tries < 1 or not may_pass(error):
                    raise
            await asyncio.sleep(random.uniform(0, _REST_S))  # noqa: S311  (jitter, not a secret)

    async def _ready(self) -> _Line:
        if self._line is not None:
            return self._line
        async with self._lock:
            if self._closed:
                raise LaneClosedError
            if self._line is None:
                place = await self._blocking(lambda: resolve(self._endpoint))
                self._goes_to(place.url, place.region)
                self._line = _Line(place, self._timing)
            return self._line

    async def _keys(self, line: _Line) -> Keys:
        """Return the keys to sign with; what may ask a network for them does so on a thread."""
        from botocore.credentials import RefreshableCredentials
        from botocore.exceptions import NoCredentialsError

        if self._credentials is None:
            # None is no answer for good: credentials may come to be where the chain looks.
            self._credentials = await self._blocking(line.place.session.get_credentials)
            if self._credentials is None:
                raise NoCredentialsError
        credentials = self._credentials
        if isinstance(credentials, RefreshableCredentials) and credentials.refresh_needed():
            return cast("Keys", await self._blocking(credentials.get_frozen_credentials))
        return cast("Keys", credentials.get_frozen_credentials())

    def _correct_clock(self, error: Exception) -> bool:
        """Take SQS's clock over where a wrong one was the reason of a refusal; says whether."""
        clock = sqs_clock(error)
        if clock is None:
            return False
        ahead = clock - datetime.now(UTC)
        if abs(ahead - self._ahead) < WRONG_CLOCK:
            return False
        self._ahead = ahead
        return True

    async def _blocking(self, work: Callable[[], T]) -> T:
        async def job() -> T:
            return work()

        return await asyncio.wrap_future(self._apart.submit(job))


class _Line:
    """The connections to a place, for short calls and for receives."""

    def __init__(self, place: Place, timing: Timing) -> None:
        import aiohttp
        import yarl

        self.place = place
        self.signer = Signer(place.host, place.path, place.region)
        # SQS is told who asks by the signature; botocore leaves a user in the URL out as well.
        self._url = yarl.URL(place.url, encoded=True).with_user(None)
        agent = user_agent_of(place.session, f"aiohttp/{aiohttp.__version__}")
        self._own = {"user-agent": agent}

        async def reused(session: object, context: Any, parameters: object) -> None:
            context.trace_request_ctx.reused = True

        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(reused)

        def make(most: int, connect_s: float, read_s: float) -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(
                limit=most, keepalive_timeout=_KEEP_ALIVE_S, ssl=place.tls or True
            )
            return aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(sock_connect=connect_s, sock_read=read_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept", "Accept-Encoding"),
                trace_configs=[trace],
            )

        self._sessions = (
            make(_MOST_SHORT, timing.connect_s, timing.read_s),
            make(0, timing.long_connect_s, timing.long_read_s),
        )

    async def post(
        self, operation: str, headers: dict[str, str], body: bytes, course: _Course, *, long: bool
    ) -> Any:
        """Make one request; returns what its JSON says.

        Raises:
            Exception: Of botocore: what SQS refused, or why it was not reached.
        """
        try:
            async with self._sessions[long].post(
                self._url,
                data=body,
                headers=headers | self._own,
                proxy=self.place.proxy,
                allow_redirects=False,
                trace_request_ctx=course,
            ) as response:
                content = await response.read()
                if response.status == 200:
                    return json.loads(content)
        except Exception as error:  # noqa: BLE001  (what is not known there goes on as it is)
            raise translated(error, str(self._url), self.place.proxy) from None
        raise refusal(operation, response.status, response.headers, content)

    async def close(self) -> None:
        """Close the connections; what is under way on them fails."""
        for session in self._sessions:
            await session.close()
