"""Which SQS queue a queue name stands for, and its URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from workhorse.domain.names import check_queue
from workhorse.errors import ConfigurationError, InvalidNameError

if TYPE_CHECKING:
    from workhorse.settings import Settings

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_ARN: Final = re.compile(r"arn:[a-z-]+:sqs:([a-z0-9-]+):(\d{12}):(.+)")
_HOST: Final = re.compile(r"(?:sqs\.)?([a-z0-9-]+)\.(?:queue\.)?amazonaws\.com(?:\.cn)?")
_ACCOUNT: Final = re.compile(r"\d{12}")


@dataclass(frozen=True, slots=True)
class Address:
    """An SQS queue: its name, and what else was given about it."""

    name: str
    url: str | None = None
    """Given as such; otherwise SQS is asked."""
    owner: str | None = None
    """The account's number, where it was given."""
    region: str | None = None

    @property
    def fifo(self) -> bool:
        """Whether it is a FIFO queue; its name says so."""
        return self.name.endswith(".fifo")


class UrlSource(Protocol):
    """What looks a queue's URL up."""

    async def queue_url(self, name: str, owner: str | None) -> str:
        """Return the URL of a queue."""
        ...


class Addresses:
    """Finds SQS queues by the names that runs carry, and remembers their URLs.

    Raises:
        ConfigurationError: A prefix, name, URL or ARN in the settings is not of the right form.
    """

    def __init__(self, settings: Settings) -> None:
        self._prefix = settings.scoped_prefix
        self._suffix = ".fifo" if settings.sqs_fifo else ""
        self._given = {
            _queue(queue): parse_address(text, what=f"sqs_queue_urls[{queue}]")
            for queue, text in settings.sqs_queue_urls.items()
        }
        self._urls: dict[str, str] = {}
        for queue in settings.queues:
            self.of(queue)

    def of(self, queue: str) -> Address:
        """Return the address of a queue.

        Raises:
            ConfigurationError: With prefix and environment the name is none that SQS allows.
        """
        given = self._given.get(queue)
        if given is not None:
            return given
        return Address(_name(f"{self._prefix}{_queue(queue)}{self._suffix}", what=f"queue {queue}"))

    async def url(self, source: UrlSource, queue: str) -> str:
        """Return the URL of a queue, asking SQS the first time."""
        address = self.of(queue)
        if address.url is not None:
            return address.url
        found = self._urls.get(queue)
        if found is None:
            found = self._urls[queue] = await source.queue_url(address.name, address.owner)
        return found

    def forget(self, queue: str) -> None:
        """Ask SQS again next time: the queue is gone, and may have been made anew."""
        self._urls.pop(queue, None)


def parse_address(text: str, *, what: str = "queue") -> Address:
    """Return the address that a URL, an ARN or a name stands for.

    Raises:
        ConfigurationError: It is none of them.
    """
    text = text.strip()
    arn = _ARN.fullmatch(text)
    if arn is not None:
        return Address(_name(arn[3], what=what), owner=arn[2], region=arn[1])
    if text.startswith(("http://", "https://")):
        try:
            parts = urlsplit(text)
        except ValueError:
            raise ConfigurationError(f"sqs lane: {what}: that is no URL") from None
        path = parts.path.split("/")
        host = _HOST.fullmatch(parts.hostname or "")
        owner = path[-2] if len(path) > 1 and _ACCOUNT.fullmatch(path[-2]) else None
        name = _name(path[-1], what=what)
        return Address(name, url=text, owner=owner, region=host[1] if host else None)
    return Address(_name(text, what=what))


def _queue(queue: str) -> str:
    try:
        return check_queue(queue)
    except InvalidNameError as error:
        raise ConfigurationError(f"sqs lane: {error}") from None


def _name(name: str, *, what: str) -> str:
    if _NAME.fullmatch(name):
        return name
    raise ConfigurationError(
        f"sqs lane: {what}: {name[:100]!a} is no name of an SQS queue, which has at most 80 "
        "characters of a-z A-Z 0-9 _ -, and may end in .fifo; shorten sqs_queue_prefix or give "
        "the queue's URL, ARN or name in sqs_queue_urls"
    )
