"""Who is compared, at which settings, and with how many jobs: few for the slow ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.environments import python_version

REQUIREMENTS = Path(__file__).parent.parent / "peers" / "requirements"


@dataclass(frozen=True)
class Plan:
    """How one entrant is measured."""

    name: str
    module: str
    jobs: int
    """How many are enqueued in bulk, and drained."""
    settings: Mapping[str, str] = field(default_factory=dict)
    sweep: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The setting that matters, and what is tried for the drain; the best one is taken."""
    latency: Mapping[str, str] = field(default_factory=dict)
    """Settings for the latency alone."""
    flows: int = 0
    """How many flows of three steps; 0 where the library stores no steps."""
    needs: tuple[int, int] = (3, 11)
    sqs: bool = False
    """Whether it goes over the SQS endpoint."""
    store: bool = True
    """Whether it keeps its jobs in PostgreSQL."""

    @property
    def ours(self) -> bool:
        """Whether it is Workhorse."""
        return self.name.startswith("workhorse")

    @property
    def requirements(self) -> Path:
        """The file of pinned versions."""
        return REQUIREMENTS / f"{self.name}.txt"


_OURS = "benchmarks.peers.workhorse_"

PLANS: tuple[Plan, ...] = (
    Plan(
        "workhorse",
        _OURS,
        jobs=20_000,
        sweep={"concurrency": ("200", "400", "800")},
        latency={"lane": "notify"},
        flows=3_000,
    ),
    Plan(
        "pgqueuer",
        "benchmarks.peers.pgqueuer_",
        jobs=20_000,
        sweep={"batch": ("100", "300", "1000", "2000")},
        latency={"batch": "10"},
    ),
    Plan(
        "absurd-sdk",
        "benchmarks.peers.absurd_",
        jobs=1_500,
        sweep={"concurrency": ("20", "100")},
        latency={"poll_s": "0.02"},
        flows=400,
    ),
    Plan(
        "dbos",
        "benchmarks.peers.dbos_",
        jobs=1_000,
        sweep={"poll_s": ("0.05", "1")},
        latency={"poll_s": "0.05"},
        flows=200,
    ),
    Plan(
        "procrastinate",
        "benchmarks.peers.procrastinate_",
        jobs=1_000,
        sweep={"concurrency": ("20", "50", "100")},
    ),
    Plan(
        "oban",
        "benchmarks.peers.oban_",
        jobs=5_000,
        sweep={"limit": ("100", "500")},
        needs=(3, 12),
    ),
    Plan(
        "chancy",
        "benchmarks.peers.chancy_",
        jobs=4_000,
        sweep={"concurrency": ("100", "500")},
    ),
    Plan(
        "workhorse-sqs",
        _OURS,
        jobs=20_000,
        settings={"lane": "sqs", "stride": "10"},
        sweep={"concurrency": ("100", "400", "800")},
        sqs=True,
    ),
    Plan(
        "workhorse-sqs-lean",
        _OURS,
        jobs=20_000,
        settings={"lane": "sqs", "stride": "10", "client": "lean"},
        sweep={"concurrency": ("100", "400", "800")},
        sqs=True,
    ),
    Plan(
        "workhorse-sqs-each",
        _OURS,
        jobs=10_000,
        settings={"lane": "sqs", "stride": "1"},
        sweep={"concurrency": ("100", "400")},
        sqs=True,
    ),
    Plan(
        "taskiq-aio-sqs",
        "benchmarks.peers.taskiq_",
        jobs=3_000,
        sweep={"prefetch": ("0", "10", "100")},
        sqs=True,
        store=False,
    ),
    Plan(
        "celery",
        "benchmarks.peers.celery_",
        jobs=1_000,
        sweep={"prefetch": ("10", "100")},
        sqs=True,
        store=False,
    ),
)


def versions(plan: Plan, python: Path) -> dict[str, str]:
    """Return which version of an entrant runs on which Python; the project's own is this clone."""
    found = {"python": "{}.{}".format(*python_version(python))}
    if not plan.ours:
        pinned = plan.requirements.read_text().splitlines()
        found["version"] = next(
            version
            for name, _, version in (line.partition("==") for line in pinned)
            if name == plan.name
        )
    return found


def chosen(names: Sequence[str]) -> tuple[Plan, ...]:
    """Return the plans of these names and of Workhorse beside them; of all where none is named.

    Raises:
        ValueError: There is no such entrant.
    """
    known = {plan.name for plan in PLANS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"no entrant is called {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    if not names:
        return PLANS
    over_sqs = {plan.sqs for plan in PLANS if plan.name in names}
    return tuple(
        plan for plan in PLANS if plan.name in names or (plan.ours and plan.sqs in over_sqs)
    )
