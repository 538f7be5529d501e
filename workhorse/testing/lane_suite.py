"""The conformance suite that every lane passes; it needs pytest.

    class TestMyLane(LaneSuite):
        @pytest.fixture
        def lane(self) -> Iterator[Lane]:
            lane = MyLane(...)
            yield lane
            lane.close()

A lane that keeps its queues elsewhere also gives the fixtures `queue` and `other_queue`, which
name queues that exist, are empty, and are read by nobody else.

Source: docs/design.md, section 5.
"""

# ruff: noqa: S101  (a suite of tests, which pytest's asserts are for)

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, suppress
from typing import ClassVar

import pytest

from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.sightings import DELETE, ShowAgain
from workhorse.ports import (
    Lane,
    Message,
    Outgoing,
    Receiver,
    SendReport,
    Unreadable,
    Wakeup,
    probe_of,
)

_SLACK_S = 30.0
"""How long to wait for what must come; only a test that fails waits for so long."""


class LaneSuite:
    """Tests of a lane's contract. Subclass it and say what your lane is like.

    A lane whose time is moved by hand sets `real_time` to False and overrides `pass_time`.
    """

    delays_messages: ClassVar[bool] = True
    """Whether single messages can be delayed; FIFO queues of SQS cannot."""
    real_time: ClassVar[bool] = True
    """Whether delays and visibility go by the wall clock."""
    visibility_ms: ClassVar[int] = 2_000
    """How long the queues of the suite hide a received message."""
    volume: ClassVar[int] = 1_000
    """How many wakeups the test of many sends."""

    # -- what a subclass gives -----------------------------------------------------------------

    @pytest.fixture
    def lane(self) -> Iterator[Lane]:
        """The lane under test; closed afterwards."""
        raise NotImplementedError("a lane suite gives the fixture `lane`")

    @pytest.fixture
    def queue(self) -> str:
        """A queue that is empty."""
        return f"suite-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def other_queue(self) -> str:
        """Another one."""
        return f"other-{uuid.uuid4().hex[:12]}"

    def pass_time(self, lane: Lane, ms: int) -> None:
        """Move the lane's clock on; nothing where it goes by itself."""

    def put_body(self, lane: Lane, queue: str, body: str) -> None:
        """Put a message of any body into a queue, past the lane."""
        pytest.skip("this lane takes no foreign messages")

    def broker_away(self, lane: Lane) -> AbstractContextManager[None]:
        """Take the broker away for the time of the context."""
        pytest.skip("this lane has no broker that could be away")

    # -- helpers -------------------------------------------------------------------------------

    @pytest.fixture
    def receiver(self, lane: Lane, queue: str) -> Iterator[Receiver]:
        """A receiver of `queue`."""
        receiver = lane.receiver(queue)
        yield receiver
        receiver.close()

    @pytest.fixture
    def carrying(self, lane: Lane) -> None:
        """Leave a test out on a lane that carries no messages."""
        if not lane.carries_messages:
            pytest.skip("this lane carries no messages")

    def wakeup(self, queue: str, traceparent: str | None = None) -> Wakeup:
        """Return a wakeup of a run that nobody has heard of."""
        return Wakeup(new_run_id(), queue, traceparent)

    def send(self, lane: Lane, *wakeups: Wakeup, delay_ms: int = 0) -> None:
        """Send wakeups; the broker has to take all of them."""
        report = lane.send([Outgoing(wakeup, delay_ms) for wakeup in wakeups])
        assert report == SendReport(sent=len(wakeups))

    def collect(self, receiver: Receiver, count: int, limit: int = 10) -> list[Message]:
        """Receive until `count` messages are there; fails when they do not come."""
        messages: list[Message] = []
        deadline = time.monotonic() + _SLACK_S
        while len(messages) < count and time.monotonic() < deadline:
            messages += receiver.receive(min(limit, count - len(messages)), 1_000)
        assert len(messages) == count, f"{len(messages)} of {count} messages came"
        return messages

    def quiet(self, lane: Lane, receiver: Receiver, for_ms: int) -> Sequence[Message]:
        """Return what comes within a time; a test expects nothing."""
        self.pass_time(lane, for_ms)
        deadline = time.monotonic() + (for_ms / 1000 if self.real_time else 0)
        while True:
            messages = receiver.receive(10, 1_000 if self.real_time else 0)
            if messages or time.monotonic() >= deadline:
                return messages

    def ids(self, messages: Sequence[Message]) -> list[RunId]:
        """Return the runs that messages name, sorted."""
        return sorted(m.content.run_id for m in messages if isinstance(m.content, Wakeup))

    # -- sending and receiving -----------------------------------------------------------------

    def test_it_is_a_lane(self, lane: Lane, receiver: Receiver) -> None:
        """It has the parts that the contract names."""
        assert isinstance(lane, Lane)
        assert isinstance(lane.carries_messages, bool)
        assert all(callable(getattr(receiver, name)) for name in ("receive", "settle", "close"))

    @pytest.mark.usefixtures("carrying")
    def test_a_wakeup_arrives_as_it_was_sent(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """Run, queue and trace survive the trip."""
        traced = self.wakeup(queue, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        plain = self.wakeup(queue)
        self.send(lane, traced, plain)

        messages = self.collect(receiver, 2)

        assert {m.content for m in messages} == {traced, plain}
        assert [m.receive_count for m in messages] == [1, 1]
        assert len({m.message_id for m in messages}) == 2

    @pytest.mark.usefixtures("carrying")
    def test_an_asynchronous_send_arrives_too(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """Both ways of sending end in the same queue."""
        wakeups = [self.wakeup(queue) for _ in range(3)]

        report = asyncio.run(lane.send_async([Outgoing(wakeup) for wakeup in wakeups]))

        assert report == SendReport(sent=3)
        assert self.ids(self.collect(receiver, 3)) == sorted(w.run_id for w in wakeups)

    def test_nothing_to_send_is_no_failure(self, lane: Lane) -> None:
        """An empty send reports nothing sent and nothing failed."""
        assert lane.send([]) == SendReport()
        assert asyncio.run(lane.send_async([])) == SendReport()

    def test_a_send_reports_success(self, lane: Lane, queue: str) -> None:
        """Also a lane without messages does its part, whatever that is."""
        self.send(lane, *(self.wakeup(queue) for _ in range(3)))

    @pytest.mark.usefixtures("carrying")
    def test_the_limit_is_kept(self, lane: Lane, queue: str, receiver: Receiver) -> None:
        """A worker with three free slots gets three messages at most."""
        wakeups = [self.wakeup(queue) for _ in range(5)]
        self.send(lane, *wakeups)
        seen: list[Message] = []
        deadline = time.monotonic() + _SLACK_S

        while len(seen) < 5 and time.monotonic() < deadline:
            got = receiver.receive(3, 1_000)
            assert len(got) <= 3
            seen += got

        assert self.ids(seen) == sorted(w.run_id for w in wakeups)
        assert receiver.receive(0, 0) == []

    @pytest.mark.usefixtures("carrying")
    def test_more_than_a_batch_can_be_asked_for(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """A limit beyond what a broker gives at once is a limit, not an error."""
        wakeups = [self.wakeup(queue) for _ in range(25)]
        for start in range(0, 25, 10):
            self.send(lane, *wakeups[start : start + 10])

        messages = self.collect(receiver, 25, limit=100)

        assert self.ids(messages) == sorted(w.run_id for w in wakeups)

    @pytest.mark.usefixtures("carrying")
    def test_queues_do_not_mix(
        self, lane: Lane, queue: str, other_queue: str, receiver: Receiver
    ) -> None:
        """What is sent to one queue is not received from another."""
        here, there = self.wakeup(queue), self.wakeup(other_queue)
        self.send(lane, there, here)

        with closing(lane.receiver(other_queue)) as other:
            assert self.ids(self.collect(receiver, 1)) == [here.run_id]
            assert self.ids(self.collect(other, 1)) == [there.run_id]
            assert receiver.receive(10, 0) == []

    def test_a_short_poll_does_not_wait(self, receiver: Receiver) -> None:
        """A wait of zero on an empty queue returns, with nothing."""
        began = time.monotonic()
        assert receiver.receive(10, 0) == []
        assert time.monotonic() - began < _SLACK_S / 2

    def test_a_send_ends_a_wait(self, lane: Lane, queue: str) -> None:
        """A worker that waits hears of new work at once, not when its wait is over."""
        with closing(lane.receiver(queue)) as receiver, ThreadPoolExecutor(1) as pool:
            began = time.monotonic()
            waiting = pool.submit(receiver.receive, 10, 20_000)
            wakeup = self.wakeup(queue)
            self.send(lane, wakeup)
            messages = waiting.result(_SLACK_S)

        assert time.monotonic() - began < 15
        assert self.ids(messages) == ([wakeup.run_id] if lane.carries_messages else [])

    # -- settling ------------------------------------------------------------------------------

    @pytest.mark.usefixtures("carrying")
    def test_a_deleted_message_is_gone(self, lane: Lane, queue: str, receiver: Receiver) -> None:
        """Its visibility time-out passes, and it does not come back."""
        self.send(lane, self.wakeup(queue))
        (message,) = self.collect(receiver, 1)

        receiver.settle([(message, DELETE)])

        assert self.quiet(lane, receiver, self.visibility_ms + 900) == []

    @pytest.mark.usefixtures("carrying")
    def test_a_message_that_is_not_settled_comes_back(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """The worker that took it may have died."""
        self.send(lane, self.wakeup(queue))
        (first,) = self.collect(receiver, 1)
        self.pass_time(lane, self.visibility_ms + 1)

        (second,) = self.collect(receiver, 1)

        assert second.content == first.content
        assert second.receive_count == 2

    @pytest.mark.usefixtures("carrying")
    def test_a_message_shown_again_at_once_has_been_received_before(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """Long before its visibility time-out; its receive count says so."""
        self.send(lane, self.wakeup(queue))
        (first,) = self.collect(receiver, 1)
        receiver.settle([(first, ShowAgain(0))])

        (second,) = self.collect(receiver, 1)

        assert second.content == first.content
        assert second.message_id == first.message_id
        assert second.receive_count > first.receive_count

    @pytest.mark.usefixtures("carrying")
    def test_a_message_shown_again_later_is_not_early(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """It is hidden for the time that was asked for, longer than its visibility time-out."""
        hidden_ms = self.visibility_ms + 1_500
        self.send(lane, self.wakeup(queue))
        (first,) = self.collect(receiver, 1)
        receiver.settle([(first, ShowAgain(hidden_ms))])

        # Half a second less, for a settlement in the background and a broker's coarse clock.
        assert self.quiet(lane, receiver, hidden_ms - 1_500) == []
        self.pass_time(lane, 1_500)
        (second,) = self.collect(receiver, 1)
        assert second.content == first.content

    @pytest.mark.usefixtures("carrying")
    def test_settling_twice_or_late_does_no_harm(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """Settling never raises, not for what is gone and not for what was made up."""
        self.send(lane, self.wakeup(queue))
        (message,) = self.collect(receiver, 1)

        receiver.settle([])
        receiver.settle([(message, DELETE)])
        receiver.settle([(message, DELETE), (message, ShowAgain(0))])
        receiver.settle([(Message("made-up", Unreadable.MALFORMED, handle=object()), DELETE)])

    # -- delays --------------------------------------------------------------------------------

    @pytest.mark.usefixtures("carrying")
    def test_a_delayed_wakeup_is_not_early(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """It comes after its delay; a fraction of a second is rounded up, not down."""
        if not self.delays_messages:
            pytest.skip("this lane delays no single message")
        began = time.monotonic()
        self.send(lane, self.wakeup(queue), delay_ms=1_200)

        assert receiver.receive(10, 0) == []
        self.pass_time(lane, 1_199)
        if not self.real_time:
            assert receiver.receive(10, 0) == []
        self.pass_time(lane, 1)
        self.collect(receiver, 1)
        if self.real_time:
            assert time.monotonic() - began >= 1.2

    def test_its_reach_is_a_time(self, lane: Lane, queue: str) -> None:
        """None where single messages cannot be delayed."""
        reach_ms = lane.reach_ms(queue)
        assert isinstance(reach_ms, int)
        assert reach_ms > 0 if lane.carries_messages and self.delays_messages else reach_ms == 0

    def test_a_delay_beyond_its_reach_is_no_failure(self, lane: Lane, queue: str) -> None:
        """It arrives early, or at once, which does no harm."""
        self.send(lane, self.wakeup(queue), delay_ms=lane.reach_ms(queue) + 3_600_000)

    # -- what goes wrong -----------------------------------------------------------------------

    @pytest.mark.usefixtures("carrying")
    @pytest.mark.parametrize(
        ("body", "why"),
        [
            ("this names no run", Unreadable.MALFORMED),
            ('{"workhorse":1,"run_id":"7","queue":"default"}', Unreadable.MALFORMED),
            ('{"workhorse":2,"whatever":"comes"}', Unreadable.NEWER_FORMAT),
        ],
    )
    def test_a_body_that_names_no_run_is_reported(
        self, lane: Lane, queue: str, receiver: Receiver, body: str, why: Unreadable
    ) -> None:
        """The worker gets the message, to settle it, with the reason instead of a wakeup."""
        self.put_body(lane, queue, body)
        (message,) = self.collect(receiver, 1)
        assert message.content is why
        assert message.message_id

    def test_a_send_without_the_broker_reports_and_does_not_raise(
        self, lane: Lane, queue: str
    ) -> None:
        """Within 2 s, and with a reason; afterwards the same lane sends again."""
        outgoing = [Outgoing(self.wakeup(queue)) for _ in range(12)]
        with self.broker_away(lane):
            for send in (lane.send, lambda them: asyncio.run(lane.send_async(them))):
                began = time.monotonic()
                report = send(outgoing)
                assert (report.sent, report.failed) == (0, 12)
                assert report.error
                assert time.monotonic() - began < 4
        self._heals(lambda: lane.send(outgoing).failed == 0)

    @pytest.mark.usefixtures("carrying")
    def test_a_receiver_outlives_the_broker(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """It may raise while the broker is away; settling does not; then it receives again."""
        wakeup = self.wakeup(queue)
        self.send(lane, wakeup)
        messages = self.collect(receiver, 1)
        with self.broker_away(lane):
            receiver.settle([(messages[0], ShowAgain(0))])
            got: Sequence[Message] = []
            with suppress(Exception):
                got = receiver.receive(10, 0)
            assert got == []
        later = self.wakeup(queue)
        self._heals(lambda: lane.send([Outgoing(later)]).failed == 0)
        self.pass_time(lane, self.visibility_ms + 1)
        found: set[RunId] = set()

        def both() -> bool:
            found.update(self.ids(receiver.receive(10, 1_000)))
            return found >= {wakeup.run_id, later.run_id}

        self._heals(both)

    def _heals(self, healed: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SLACK_S
        while time.monotonic() < deadline:
            with suppress(Exception):  # a broker may take a moment to come back
                if healed():
                    return
        raise AssertionError(f"the lane has not healed within {_SLACK_S:g} s")

    # -- closing -------------------------------------------------------------------------------

    def test_closing_a_receiver_ends_its_wait(self, lane: Lane, queue: str) -> None:
        """Soon, with nothing; and it stays closed, however often it is closed."""
        receiver = lane.receiver(queue)
        waits = threading.Event()

        def receive() -> Sequence[Message]:
            waits.set()
            return receiver.receive(10, 20_000)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(receive)
            waits.wait(_SLACK_S)
            began = time.monotonic()
            receiver.close()
            assert waiting.result(_SLACK_S) == []
            assert time.monotonic() - began < 5
        receiver.close()
        assert receiver.receive(10, 20_000) == []

    def test_closing_the_lane_ends_all_waits(self, lane: Lane, queue: str) -> None:
        """A send then fails by its report alone."""
        receiver = lane.receiver(queue)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(receiver.receive, 10, 20_000)
            lane.close()
            lane.close()
            assert waiting.result(_SLACK_S) == []
        if lane.carries_messages:
            assert lane.send([Outgoing(self.wakeup(queue))]).failed == 1
        receiver.close()

    # -- looking -------------------------------------------------------------------------------

    def test_the_backlog_is_about_what_is_visible(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """None where there are no messages."""
        self.send(lane, *(self.wakeup(queue) for _ in range(4)))
        if not lane.carries_messages:
            assert lane.backlog(queue) is None
            return
        self._heals(lambda: lane.backlog(queue) == 4)
        self.collect(receiver, 3)
        self._heals(lambda: lane.backlog(queue) == 1)

    def test_a_healthy_queue_has_nothing_wrong_with_it(self, lane: Lane, queue: str) -> None:
        """What is only worth knowing is allowed."""
        found = lane.check(queue)
        assert [each for each in found if each.severity.bad] == []
        assert {each.queue for each in found} <= {queue}

    def test_a_probe_finds_nothing_and_changes_nothing(
        self, lane: Lane, queue: str, receiver: Receiver
    ) -> None:
        """Where the lane has one: it is what a worker does at its start, beside live messages."""
        probe = probe_of(lane)
        if probe is None:
            pytest.skip("the lane has no probe")
        wakeup = self.wakeup(queue)
        self.send(lane, wakeup)
        assert probe(queue) == []
        (message,) = self.collect(receiver, 1)
        assert message.content == wakeup
        assert probe(queue) == []
        receiver.settle([(message, ShowAgain(0))])
        assert self.ids(self.collect(receiver, 1)) == [wakeup.run_id]

    # -- many ----------------------------------------------------------------------------------

    @pytest.mark.usefixtures("carrying")
    def test_many_wakeups_of_many_threads_all_arrive(self, lane: Lane, queue: str) -> None:
        """Four threads send, two receive and delete; none is lost on a quiet day."""
        wakeups = [self.wakeup(queue) for _ in range(self.volume)]
        tens = iter([wakeups[start : start + 10] for start in range(0, len(wakeups), 10)])
        expected = {wakeup.run_id for wakeup in wakeups}
        seen: set[RunId] = set()
        lock = threading.Lock()
        # Few are under way at a time: some emulators look at all messages for each of them.
        room = threading.Semaphore(60)
        deadline = time.monotonic() + 4 * _SLACK_S

        def produce() -> None:
            while time.monotonic() < deadline:
                with lock:
                    ten = next(tens, None)
                if ten is None:
                    return
                for _ in ten:
                    room.acquire(timeout=_SLACK_S)
                while lane.send([Outgoing(wakeup) for wakeup in ten]).failed:
                    assert time.monotonic() < deadline

        def consume() -> None:
            with closing(lane.receiver(queue)) as receiver:
                while seen != expected and time.monotonic() < deadline:
                    try:
                        messages = receiver.receive(10, 1_000)
                    except Exception:  # noqa: BLE001, S112 - a broker may fail; the caller asks again
                        continue
                    receiver.settle([(message, DELETE) for message in messages])
                    with lock:
                        fresh = set(self.ids(messages)) - seen
                        seen.update(fresh)
                    if fresh:
                        room.release(len(fresh))

        with ThreadPoolExecutor(6) as pool:
            work = [pool.submit(produce) for _ in range(4)] + [pool.submit(consume) for _ in "12"]
            for each in work:
                each.result()

        assert len(seen) == len(expected)
        assert seen == expected
