"""What has to hold, judged from what was before a step, what the store said, and what is behind it.

Said from docs/design.md, sections 2 and 3, in plain Python: no SQL, and nothing of the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.exploration.steps import SIGNAL, STAGE, TIMER, Answer, Step, token_of
from tests.exploration.world import LEASE, MAX_ATTEMPTS, NAP, REST, TIMEOUT, Live, Seen, World

FINISHED: Final = frozenset({"succeeded", "failed", "cancelled"})

LEGAL: Final = frozenset(
    {
        ("claims", "ready", "running"),
        ("claims", "scheduled", "running"),  # a wakeup names one that is due
        ("succeed", "running", "succeeded"),
        ("succeed", "running", "cancelled"),
        ("fail", "running", "scheduled"),
        ("fail", "running", "failed"),
        ("fail", "running", "cancelled"),
        ("give up", "running", "failed"),
        ("give up", "running", "cancelled"),
        ("wait", "running", "waiting"),
        ("wait", "running", "ready"),
        ("wait", "running", "cancelled"),
        ("sleep", "running", "scheduled"),
        ("sleep", "running", "cancelled"),
        ("hand back", "running", "ready"),
        ("hand back", "running", "cancelled"),
        ("recovery", "running", "scheduled"),
        ("recovery", "running", "failed"),
        ("recovery", "running", "cancelled"),
        ("finishing", "running", "cancelled"),
        ("promotion", "scheduled", "ready"),
        ("promotion", "waiting", "ready"),
        ("delivers", "waiting", "ready"),
        ("cancels", "ready", "cancelled"),
        ("cancels", "scheduled", "cancelled"),
        ("cancels", "waiting", "cancelled"),
    }
)
"""The table of docs/design.md, section 2: which step may change which state to which."""


def kind_of(step: Step) -> str:
    """The step as the table calls it."""
    what = step.what
    if "offers" in what:
        return what.partition(" to ")[2]
    for part, kind in {
        "cancelled runs": "finishing",
        "recovery looks": "looking",
        "recovery": "recovery",
        "promotion": "promotion",
        "claims": "claims",
        "delivers": "delivers",
        "cancels": "cancels",
        "set back": "set back",
    }.items():
        if part in what:
            return kind
    return what


def judge(before: World, was: Seen, step: Step, answer: Answer, after: World, now: Seen) -> str:
    """Say the first thing that does not hold; nothing where all is well."""
    kind = kind_of(step)
    if kind == "set back":
        return next(_alone(after, now), "")
    rules = (
        _alone(after, now),
        _states(kind, was, now),
        _kept(was, now),
        _lease(before, was, step, kind, answer, now),
        _counts(was, kind, now),
        _cancelled(was, kind, answer, now),
        _has_to(before, was, step, kind, answer, after, now),
        _waits(before, was, kind, answer, now),
        _wakeups(was, kind, answer, now),
    )
    return next((said for rule in rules for said in rule), "")


def held(world: World, step: Step) -> bool:
    """Whether who does the step holds the run's lease: by what happened, not by what is stored."""
    return world.holder is not None and _number(world, step) == world.holder


def has_expired(world: World, live: Live) -> bool:
    return live.expires is not None and live.expires <= world.now


# -- what holds by itself ------------------------------------------------------------------------


def _alone(world: World, seen: Seen) -> Iterator[str]:
    live, end = seen.live, seen.end
    if seen.broken:
        yield seen.broken
    if (live is None) == (end is None):
        yield "the run is lost" if live is None else "it is unfinished and finished"
    spent = len(seen.attempts)
    if live is not None:
        if (live.state == "running") != (live.token is not None):
            yield f"a {live.state} run {'has' if live.token is not None else 'has no'} token"
        if (live.token is None) != (live.expires is None):
            yield "a lease without a token or an end"
        if live.attempt != 1 + world.errors + world.recoveries:
            yield (
                f"attempt {live.attempt} after {world.errors} errors and {world.recoveries} "
                "recoveries"
            )
        if spent != live.attempt - 1:
            yield f"attempt {live.attempt}, but {spent} have left a failure"
        if live.cancel_asked and live.state != "running":
            yield f"a cancel was asked, and the run is {live.state}"
        if live.state == "waiting" and SIGNAL in seen.deliveries:
            yield "it waits for what was delivered: that is lost"
        if live.state == "scheduled" and live.due is None:
            yield "it is scheduled for never"
        if live.state in ("ready", "running") and live.due is not None:
            yield f"it is {live.state}, and due later"
    if end is not None:
        if end.attempt != world.errors + world.recoveries + (end.attempt != spent):
            yield f"it ended in attempt {end.attempt}: {world.errors} and {world.recoveries}"
        if not 0 <= end.attempt - spent <= 1:
            yield f"it ended in attempt {end.attempt}, and {spent} have left a failure"


# -- what a step may change ----------------------------------------------------------------------


def _states(kind: str, was: Seen, now: Seen) -> Iterator[str]:
    if was.state != now.state and (kind, was.state, now.state) not in LEGAL:
        yield f"{kind!r} made a {was.state} run {now.state}"


def _kept(was: Seen, now: Seen) -> Iterator[str]:
    """What is never taken back."""
    if was.end is not None and now.end != was.end:
        yield f"it had ended {was.end.state}, and now: {now.end}"
    for what, old, new in (
        ("boundary", was.boundaries, now.boundaries),
        ("delivery", was.deliveries, now.deliveries),
    ):
        for name, stood in old.items():
            if new.get(name) != stood:
                yield f"the {what} {name!r} changed from {stood} to {new.get(name)}"
    if now.attempts[: len(was.attempts)] != was.attempts:
        yield f"failed attempts changed from {was.attempts} to {now.attempts}"


def _lease(
    before: World, was: Seen, step: Step, kind: str, answer: Answer, now: Seen
) -> Iterator[str]:
    old, new = was.live, now.live
    is_holder = held(before, step)
    # Nothing is stored under a lease that is gone.
    if step.worker is not None and kind not in ("claims", "dies") and not is_holder:
        if now != was:
            yield f"it was stored without the lease: {_difference(was, now)}"
        if answer.said not in ("lost", ""):
            yield f"without the lease the answer is {answer.said!r}"
    if old is not None and new is not None:
        if kind == "claims" and new != old:
            if new.fence != old.fence + 1:
                yield f"the claim made fence {old.fence} {new.fence}"
            if new.token != token_of(before):
                yield "the claim's token is not the one that was drawn"
            if new.expires != before.now + LEASE:
                yield f"the claim's lease ends at {new.expires}"
            if answer.lease is None or answer.lease.fence != new.fence:
                yield f"the claim answered {answer.lease}"
        elif new.fence != old.fence:
            yield f"the fence went from {old.fence} to {new.fence}"
        if old.token is not None and new.token not in (old.token, None):
            yield "one lease was made another"
        if new.token is not None and old.token == new.token and new.expires != old.expires:
            if kind != "renews" or not is_holder:
                yield f"{kind!r} moved the lease's end from {old.expires} to {new.expires}"
            if has_expired(before, old):
                yield "a lease that had run out was revived"
            if old.cancel_asked:
                yield "the lease of a run that is to be cancelled was extended"
            if new.expires != before.now + LEASE:
                yield f"the renewed lease ends at {new.expires}"
    # A lease that is live is ended by its holder alone.
    ended = old is not None and old.token is not None and (new is None or new.token is None)
    if ended and old is not None and not is_holder and not has_expired(before, old):
        yield f"{kind!r} ended a lease that was live"


def _counts(was: Seen, kind: str, now: Seen) -> Iterator[str]:
    old, new = was.live, now.live or now.end
    if old is None or new is None:
        return
    spends = kind in ("fail", "recovery") and was.state == "running" and now.state == "scheduled"
    if new.attempt != old.attempt + spends:
        yield f"{kind!r} took attempt {old.attempt} to {new.attempt}"
    if isinstance(new, Live):
        counted = new.inbox - old.inbox
        came = len(now.deliveries) - len(was.deliveries)
        if counted != came:
            yield f"{came} came, and {counted} were counted"
        if old.started and not new.started:
            yield "it was started before, and is not any more"


def _cancelled(was: Seen, kind: str, answer: Answer, now: Seen) -> Iterator[str]:
    asked = was.live is not None and was.live.cancel_asked
    if asked and now.live is not None and not now.live.cancel_asked:
        yield "the cancel that was asked is forgotten"
    if asked and now.end is not None and now.end.state != "cancelled":
        yield f"a cancel was asked, and it ended {now.end.state}"
    fresh = was.end is None and now.end is not None
    by_it = fresh and now.state == "cancelled" and not asked
    if by_it and kind != "cancels":
        yield f"{kind!r} cancelled it, and nobody had asked"
    is_asked = now.live is not None and now.live.cancel_asked
    if is_asked and not asked and kind != "cancels":
        yield f"{kind!r} asked for a cancel"
    if kind == "cancels":
        if was.cancels == 0 and was.end is None and now.cancels != 1:
            yield "the cancel is not in the audit"
        if was.state == "running" and not (answer.said == "asked" and is_asked):
            yield f"a cancel of a running run answered {answer.said!r}"
        at_once = was.live is not None and was.state != "running"
        if at_once and not (answer.said == now.state == "cancelled"):
            yield f"a cancel of a {was.state} run answered {answer.said!r}"
        if was.end is not None and was.cancels == 0 and answer.said != "already_finished":
            yield f"a cancel of a finished run answered {answer.said!r}"


# -- what a step has to do -----------------------------------------------------------------------


def _has_to(
    before: World, was: Seen, step: Step, kind: str, answer: Answer, after: World, now: Seen
) -> Iterator[str]:
    """Promises that something happens: nothing is stuck."""
    old = was.live
    is_holder = held(before, step)
    asked = old is not None and old.cancel_asked
    match kind:
        case "claims":
            yield from _has_to_claim(before, step, was, answer, now)
        case "renews" if is_holder and old is not None:
            expected = (
                "cancelled" if asked else "expired" if has_expired(before, old) else "renewed"
            )
            if answer.said != expected:
                yield f"the renewal answered {answer.said!r}, not {expected!r}"
            stands = now.live.expires if now.live is not None else None
            if stands != (before.now + LEASE if expected == "renewed" else old.expires):
                yield f"the renewal answered {answer.said!r}, and the lease ends at {stands}"
        case "writes a checkpoint" if is_holder:
            if answer.said != "stored" or STAGE not in now.boundaries:
                yield f"the holder's checkpoint was {answer.said!r}"
            _, value, _, fence = now.boundaries.get(STAGE, ("", None, None, 0))
            if (value, fence) != (str(_number(before, step)), old.fence if old else 0):
                yield f"the checkpoint holds {value} of fence {fence}"
        case "says its progress" if is_holder and now.progress != str(_number(before, step)):
            yield f"the holder's progress is {now.progress}"
        case "succeed" | "fail" | "give up" | "wait" | "sleep" | "hand back":
            yield from _has_to_settle(before, step, kind, was, answer, after, now)
        case "recovery" if old is not None and was.state == "running":
            # Of one in two transactions it is only asked that it does no harm.
            if has_expired(before, old) and "writes" not in step.what:
                last = old.attempt >= MAX_ATTEMPTS
                expected = "cancelled" if asked else "failed" if last else "scheduled"
                if now.state != expected:
                    yield f"recovery made it {now.state}, not {expected}"
                if now.live is not None and now.live.due != before.now + REST:
                    yield f"recovery makes it due at {now.live.due}"
                if now.end is not None and now.end.token is not None:
                    yield "recovery signed for the lease's holder"
                if now.end is not None and not asked and now.end.reason != "lost":
                    yield f"recovery ended it for {now.end.reason!r}"
        case "finishing" if old is not None and asked and has_expired(before, old):
            if now.state != "cancelled":
                yield f"its worker is gone, and it is {now.state}"
        case "promotion" if old is not None and old.due is not None and old.due <= before.now:
            if now.state != "ready":
                yield f"it was due, and is {now.state}"
        case "delivers":
            yield from _has_to_deliver(step, was, answer, now)


def _has_to_claim(before: World, step: Step, was: Seen, answer: Answer, now: Seen) -> Iterator[str]:
    old = was.live
    due = old is not None and old.due is not None and old.due <= before.now
    named = "wakeup" in step.what
    takes = was.state == "ready" or (was.state == "scheduled" and due and named)
    if (answer.said == "claimed") != takes or (now.state == "running") != (
        takes or was.state == "running"
    ):
        yield f"a {was.state} run, {'due' if due else 'not due'}: the claim answered {answer.said}"
    if not takes and now != was:
        yield f"a claim that took nothing changed something: {_difference(was, now)}"
    claimed = answer.claimed
    if claimed is not None and now.live is not None:
        passed = {each.name for each in claimed.history.boundaries}
        came = {each.name for each in claimed.history.deliveries}
        if passed != now.boundaries.keys() or came != now.deliveries.keys():
            yield f"the claim brought {sorted(passed | came)}"
        if (claimed.attempt, claimed.inbox) != (now.live.attempt, now.live.inbox):
            yield f"the claim says attempt {claimed.attempt}, {claimed.inbox} deliveries"


def _has_to_settle(
    before: World, step: Step, kind: str, was: Seen, answer: Answer, after: World, now: Seen
) -> Iterator[str]:
    old = was.live
    mine = now.end is not None and after.ended_by == _number(before, step)
    if answer.mine != mine:
        yield f"its own end was {'not ' * mine}known again"
    if old is None or not held(before, step):
        return
    asked, last = old.cancel_asked, old.attempt >= MAX_ATTEMPTS
    came = SIGNAL in now.deliveries
    expected = {
        "succeed": "succeeded",
        "fail": "failed" if last else "scheduled",
        "give up": "failed",
        "wait": "ready" if came else "waiting",
        "sleep": "scheduled",
        "hand back": "ready",
    }[kind]
    if asked:
        expected = "cancelled"
    if now.state != expected or answer.said != expected:
        yield f"{kind!r} made it {now.state} and answered {answer.said!r}, not {expected}"
    if now.end is not None and now.end.token != old.token:
        yield "the end does not name the lease that it was settled under"
    if now.end is not None and now.end.fence != old.fence:
        yield f"it ended under fence {old.fence}, and says {now.end.fence}"
    succeeded = now.end is not None and now.state == "succeeded"
    if succeeded and now.end is not None and now.end.result != str(_number(before, step)):
        yield f"the result is {now.end.result}"
    if kind == "wait" and not asked and SIGNAL not in now.boundaries:
        yield "it waits for a name that it has not stored"
    due = now.live.due if now.live is not None else None
    if kind == "fail" and now.state == "scheduled" and due != before.now + REST:
        yield f"the next attempt is due at {due}"


def _has_to_deliver(step: Step, was: Seen, answer: Answer, now: Seen) -> Iterator[str]:
    value, key = ('"a"', "one") if step.what.endswith("a") else ('"b"', "two")
    stood = was.deliveries.get(SIGNAL)
    if was.end is not None:
        expected = "run_finished"
    elif stood is not None:
        expected = "duplicate" if stood == ("value", value, key) else "already_settled"
    else:
        expected = "delivered" if was.state == "waiting" else "kept"
    if answer.said != expected:
        yield f"the delivery was {answer.said!r}, not {expected!r}"
    if expected in ("delivered", "kept"):
        if now.deliveries.get(SIGNAL) != ("value", value, key):
            yield f"the delivery is lost: {now.deliveries.get(SIGNAL)}"
    elif now != was:
        yield f"a delivery that was {answer.said!r} changed something: {_difference(was, now)}"
    if expected == "delivered" and now.state != "ready":
        yield f"what it waits for was delivered, and it is {now.state}"


def _waits(before: World, was: Seen, kind: str, answer: Answer, now: Seen) -> Iterator[str]:
    """Waits are stored with the lease's end, and their times are kept."""
    for name, ticks in ((SIGNAL, TIMEOUT), (TIMER, NAP)):
        stored = now.boundaries.get(name)
        if stored is not None and name not in was.boundaries:
            if kind not in ("wait", "sleep"):
                yield f"{kind!r} stored the wait {name!r}"
            if stored[2] != before.now + ticks:
                yield f"the wait {name!r} is over at {stored[2]}"
    if now.live is not None and now.state == "waiting":
        until = now.boundaries[SIGNAL][2] if SIGNAL in now.boundaries else None
        if until is None or now.live.due != until:
            yield f"it waits until {now.live.due}, and its wait until {until}"
    timed_out = now.deliveries.get(SIGNAL, ("",))[0] == "timed_out" and not was.deliveries
    if timed_out and (kind != "promotion" or was.live is None or was.live.due is None):
        yield f"{kind!r} timed a wait out"
    if timed_out and was.live is not None and (was.live.due or 0) > before.now:
        yield f"a wait until {was.live.due} timed out at {before.now}"


def _wakeups(was: Seen, kind: str, answer: Answer, now: Seen) -> Iterator[str]:
    """Who makes a run claimable says so; what is due later is sent with its delay."""
    became_ready = now.state == "ready" and was.state != "ready"
    under_way = was.live is not None and was.live.wake_sent and kind == "promotion"
    if became_ready and 0 not in answer.hints and not under_way:
        yield "it is ready, and nobody is told"
    later = kind in ("fail", "wait", "sleep", "recovery") and now != was
    if later and now.live is not None and now.live.due is not None:
        told = any(delay > 0 for delay in answer.hints)
        if now.live.wake_sent != told:
            yield f"wakeups after {answer.hints}, and the row says {now.live.wake_sent}"


def _number(world: World, step: Step) -> int | None:
    activation = world.workers[step.worker] if step.worker is not None else None
    return activation.number if activation is not None else None


def _difference(was: Seen, now: Seen) -> str:
    changed = [
        f"{name} from {getattr(was, name)} to {getattr(now, name)}"
        for name in Seen.__slots__
        if getattr(was, name) != getattr(now, name)
    ]
    return "; ".join(changed)
