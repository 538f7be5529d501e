"""What operators do: look at runs and queues, cancel, run again, pause, wake up, examine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workhorse.client.checks import check_page, check_said, new_request_id
from workhorse.client.dead_letters import DeadLetterCalls
from workhorse.client.doctor import Doctor
from workhorse.client.inspecting import InspectionCalls
from workhorse.client.many import ManyCalls, check_boundaries
from workhorse.client.publishing import Publisher
from workhorse.client.results import Run, RunCalls
from workhorse.domain.findings import Finding
from workhorse.domain.hints import Hint
from workhorse.domain.ids import parse_run_id
from workhorse.domain.measures import Measures
from workhorse.domain.names import check_key, check_queue, check_request, check_task
from workhorse.domain.presence import ProcessView
from workhorse.domain.runs import RunState, RunView
from workhorse.domain.showing import member, shown
from workhorse.errors import ConfigurationError
from workhorse.ports import Lane
from workhorse.store.base.database import Store
from workhorse.store.fleet import measuring, presence
from workhorse.store.operators import operating, viewing
from workhorse.store.operators.viewing import QueueView
from workhorse.store.producing.idempotency import reset_key

if TYPE_CHECKING:
    from workhorse.handlers.tasks import Task

PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Rehinted:
    """What was done for one queue: its ready runs, and the wakeups sent and not sent for them."""

    queue: str
    ready: int
    sent: int
    not_sent: int


class Admin(InspectionCalls, ManyCalls, DeadLetterCalls):
    """Operators' calls; each act is audited with who (`by`) and why. Safe in threads.

    Args:
        store: Returns the store.
        lane: Returns the lane.
        publisher: Sends wakeups.
        calls: What handles of runs work with.
        doctor: Examines the system.
        stride: One wakeup for so many ready runs of a queue.
    """

    def __init__(
        self,
        *,
        store: Callable[[], Store],
        lane: Callable[[], Lane],
        publisher: Publisher,
        calls: RunCalls,
        doctor: Doctor,
        stride: int,
    ) -> None:
        self._store = store
        self._lane = lane
        self._publisher = publisher
        self._calls = calls
        self._doctor = doctor
        self._names = doctor.queue_names
        self._stride = stride

    # -- runs ------------------------------------------------------------------------------------

    def list_runs(
        self,
        *,
        state: RunState | str | None = None,
        task: str | None = None,
        queue: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[RunView]:
        """Return runs, the newest first.

        Args:
            state: Only runs in this state.
            task: Only runs of the task enqueued under this name.
            queue: Only runs of this queue.
            limit: How many at most, 1 to 1,000.
            before: The last id of the page before this one.

        Raises:
            ConfigurationError: The state is none, or the limit is out of range.
            InvalidNameError: A name or id is not of the allowed form.
        """
        return self._store().read(
            viewing.list_runs,
            state=None if state is None else _state(state),
            task=None if task is None else check_task(task),
            queue=None if queue is None else check_queue(queue),
            limit=check_page(limit),
            before=None if before is None else parse_run_id(before),
        )

    def count_runs(self) -> dict[RunState, int]:
        """Return how many runs there are in each state."""
        return self._store().read(viewing.counts)

    def show(self, run_id: str) -> RunView:
        """Return a run whole.

        Raises:
            RunNotFoundError: No such run.
        """
        return self._calls.view(parse_run_id(run_id))

    def cancel(self, run_id: str, *, by: str, why: str = "") -> RunState:
        """Cancel a run, or ask its worker to end it; return the state that now stands.

        Raises:
            RunNotFoundError: No such run.
        """
        return self._calls.cancel(parse_run_id(run_id), by=by, why=why)

    def rerun(
        self,
        run_id: str,
        boundaries: str = operating.ALL,
        *,
        by: str,
        why: str = "",
        request_id: str | None = None,
    ) -> Run[Any]:
        """Start a finished run again, as a new run linked to it: same payload, fresh budget.

        Stages whose boundaries it takes over are not done again, and what settled their waits
        stands: a time-out, or a child that failed, too. With all of them, signals that no wait had
        asked for come along. A child that had not ended is started anew, and a token that was not
        settled linked anew; a `wait_any` is decided anew where its decision is not taken over.

        Args:
            run_id: The finished run.
            boundaries: `all`, `none`, or a boundary's name: that one and all that the run came to
                before.
            by: Who asks.
            why: For the audit.
            request_id: A name for this request, up to 200 characters: the same one starts one run,
                however often it is repeated.

        Raises:
            RunNotFoundError: No such run.
            RunNotFinishedError: It has not ended yet.
            BoundaryNotFoundError: It has no boundary of that name; the message lists what it has.
        """
        check_said("by", by, least=1)
        check_said("why", why)
        store, reach = self._store(), self._lane().reach_ms
        done = store.run(
            operating.rerun,
            parse_run_id(run_id),
            by=by,
            why=why,
            request_id=new_request_id() if request_id is None else check_request(request_id),
            reach=reach,
            boundaries=check_boundaries(boundaries),
        )
        if done.created:
            self._publisher.publish([Hint(done.run_id, done.queue)])
        return Run(self._calls, done.run_id, queue=done.queue, created=done.created)

    # -- queues ----------------------------------------------------------------------------------

    def list_queues(self) -> list[QueueView]:
        """Return the queues that hold unfinished runs or were paused once, by name."""
        return self._store().read(viewing.list_queues)

    def pause_queue(self, queue: str, *, by: str, why: str = "") -> bool:
        """Stop claims from a queue, what runs goes on; answer whether it was open before."""
        check_said("by", by, least=1)
        check_said("why", why)
        return self._store().run(operating.pause_queue, check_queue(queue), by=by, why=why)

    def resume_queue(self, queue: str, *, by: str, why: str = "") -> bool:
        """Open a queue again and wake workers for it; answer whether it was paused."""
        check_said("by", by, least=1)
        check_said("why", why)
        changed = self._store().run(operating.resume_queue, check_queue(queue), by=by, why=why)
        if changed:
            self.rehint(queue)
        return changed

    # -- the fleet -------------------------------------------------------------------------------

    def list_processes(self) -> list[ProcessView]:
        """Return workers and maintenance, by kind and id, for an hour after their last beat."""
        return self._store().read(presence.list_processes)

    def measures(self) -> list[Measures]:
        """Measure each queue that holds runs or is served, by name.

        Failed runs are those since maintenance measured last, or of the last minute where it never
        did. Nothing is written.
        """
        return self._store().read(measuring.measure, measuring.STEP).queues

    # -- wakeups and health ----------------------------------------------------------------------

    def rehint(
        self, queue: str | None = None, *, progress: Callable[[Rehinted], object] | None = None
    ) -> list[Rehinted]:
        """Send wakeups for runs that are ready, in pages; paused queues get none.

        Args:
            queue: Only this queue; None for all that hold ready runs.
            progress: Told after each page what was done for its queue so far.
        """
        wanted = None if queue is None else check_queue(queue)
        open_queues = self._store().read(viewing.open_queues)
        return [
            self._rehint(name, progress) for name in open_queues if wanted is None or name == wanted
        ]

    def doctor(self) -> list[Finding]:
        """Examine store, tasks, queues, processes and lane; what is well is said too.

        Where runs seem to wait for wakeups, it looks again two seconds later.
        """
        return self._doctor.examine()

    def _rehint(self, queue: str, progress: Callable[[Rehinted], object] | None) -> Rehinted:
        done = Rehinted(queue, 0, 0, 0)
        after: viewing.ReadyCursor | None = None
        while True:
            page = self._store().read(viewing.ready_page, queue, after, PAGE)
            # Counted on from the pages before: one wakeup for each so many runs of the queue.
            first = -done.ready % self._stride
            report = self._publisher.publish(
                [Hint(run_id, queue) for run_id in page.ids[first :: self._stride]]
            )
            done = Rehinted(
                queue,
                done.ready + len(page.ids),
                done.sent + report.sent,
                done.not_sent + report.failed,
            )
            if progress is not None:
                progress(done)
            if page.after is None:
                return done
            after = page.after


class Idempotency:
    """An app's idempotency keys."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def reset(self, task: Task[Any, Any] | str, key: str) -> bool:
        """Free a key, so that the next enqueue with it makes a new run; the old run stands.

        Args:
            task: The task, or the name that the runs were enqueued under.
            key: The key.

        Returns:
            Whether the key was taken.
        """
        name = task if isinstance(task, str) else getattr(task, "name", task)
        return self._store().run(reset_key, check_task(name), check_key(key))


def _state(state: RunState | str) -> RunState:
    meant = member(RunState, state)
    if meant is None:
        raise ConfigurationError(f"state {shown(state)} is none of: {', '.join(RunState)}")
    return meant
