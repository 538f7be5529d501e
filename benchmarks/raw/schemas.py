"""Table shapes that were tried, and the statements over each: claim by ids, by scan, and settle.

Every shape offers the same statements: `claim_ids` (ids, owner, lease seconds) and `claim_scan`
(limit, owner, lease seconds) answer (id, attempt, payload); `settle` (ids, attempts, owner,
results) answers the settled ids.

The settle statements of all shapes but the naive one must not say `state = 1`: with it the planner,
whose statistics say that hardly any row is leased, drives the join from the partial index on leased
rows instead of the primary key, and reads every leased row and every dead entry of that index on
each call: double the server's CPU. The owner is null unless leased.
"""

from __future__ import annotations

import json
from typing import ClassVar

PAYLOAD = {"user": 12345, "email": "ada@example.com", "tags": ["a", "b", "c"], "note": "x" * 60}
PAYLOAD_TEXT = json.dumps(PAYLOAD)

AUTOVACUUM = (
    "autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000,"
    " autovacuum_vacuum_cost_delay=0"
)


def _claim(table: str, chosen: str, values: str) -> str:
    return f"""with c as ({chosen} for update skip locked)
      update {table} r set {values} from c where r.id=c.id
      returning r.id, r.attempt, r.payload"""


_LEASED = "attempt=attempt+1, owner=$2, lease_expires_at=now()+make_interval(secs=>$3)"


class Shape:
    """What the shapes share.

    Args:
        id_type: `bigint` or `uuid`.
        payload_type: `jsonb`, `json` or `bytea`.
    """

    name: ClassVar[str]
    live_table: ClassVar[str] = "live"
    ready_where: ClassVar[str] = ""
    pending_ids: ClassVar[str]
    claim_ids: ClassVar[str]
    claim_scan: ClassVar[str]

    def __init__(self, id_type: str = "bigint", payload_type: str = "jsonb") -> None:
        self.id_type = id_type
        self.payload_type = payload_type
        self.id_of_g = "uuid7(g)" if id_type == "uuid" else "g"

    def create(self) -> str:
        """Return the statements that make the tables anew."""
        raise NotImplementedError

    def fill(self, finished: bool, low: int, high: int) -> str:
        """Return a statement that adds the rows `low` to `high`, finished or pending."""
        raise NotImplementedError

    @property
    def settle(self) -> str:
        """The settle statement."""
        raise NotImplementedError

    def _anew(self) -> str:
        dropped = "drop table if exists runs, live, done, ready, leases, events cascade;"
        if self.id_type != "uuid":
            return dropped
        # time-ordered (the layout of version 7) from a sequence number, for bulk fills alone
        return f"""{dropped}
        create or replace function uuid7(g bigint) returns uuid language sql volatile as $$
          select (lpad(to_hex(1764000000000 + g/4), 12, '0') || '7'
            || lpad(to_hex(g % 4096), 3, '0')
            || '8' || substr(md5(random()::text), 1, 15))::uuid $$;"""

    def _series(self, low: int, high: int) -> str:
        return f"generate_series({low}::bigint,{high}::bigint) g"


class Naive(Shape):
    """One table, text state, plain btrees on state columns: what a first draft does."""

    name = "v1_naive"
    live_table = "runs"
    ready_where = "where state='pending'"

    def create(self) -> str:
        return f"""{self._anew()}
        create table runs(id {self.id_type} primary key, queue text not null, state text not null,
          priority int not null default 0, run_at timestamptz not null default now(),
          attempt int not null default 0, owner bigint, lease_expires_at timestamptz,
          created_at timestamptz not null default now(), finished_at timestamptz,
          payload {self.payload_type} not null, result {self.payload_type});
        create index on runs(queue, state, priority, run_at);
        create index on runs(state, lease_expires_at);
        create index on runs(created_at);"""

    def fill(self, finished: bool, low: int, high: int) -> str:
        state, at = ("'done'", "now()") if finished else ("'pending'", "null")
        return f"""insert into runs(id,queue,state,finished_at,payload)
          select {self.id_of_g},'default',{state},{at},'{PAYLOAD_TEXT}'::{self.payload_type}
          from {self._series(low, high)}"""

    pending_ids = "select id from runs where state='pending' order by id limit $1"
    claim_ids = _claim(
        "runs",
        "select id from runs where id = any($1) and state='pending' and run_at<=now() order by id",
        f"state='running', {_LEASED}",
    )
    claim_scan = _claim(
        "runs",
        "select id from runs where queue='default' and state='pending' and run_at<=now()"
        " order by priority, run_at limit $1",
        f"state='running', {_LEASED}",
    )

    @property
    def settle(self) -> str:
        return f"""update runs r set state='done', finished_at=now(), owner=null,
        lease_expires_at=null, result=u.result
      from unnest($1::{self.id_type}[], $2::int[], $4::{self.payload_type}[]) u(id,attempt,result)
      where r.id=u.id and r.attempt=u.attempt and r.owner=$3 and r.state='running' returning r.id"""


def _partial_claims(table: str) -> tuple[str, str, str]:
    ready = f"select id from {table} where"
    return (
        f"{ready} state=0 and queue=1 order by queue, priority, run_at, id limit $1",
        _claim(
            table,
            f"{ready} id = any($1) and state=0 and run_at<=now() order by id",
            f"state=1, {_LEASED}",
        ),
        _claim(
            table,
            f"{ready} queue=1 and state=0 and run_at<=now() order by priority, run_at, id limit $1",
            f"state=1, {_LEASED}",
        ),
    )


class Partial(Shape):
    """One table, smallint state, partial indexes for ready and leased rows."""

    name = "v2_partial"
    live_table = "runs"
    ready_where = "where state=0"

    def create(self) -> str:
        return f"""{self._anew()}
        create table runs(id {self.id_type} primary key, queue int not null,
          state smallint not null, priority smallint not null default 0,
          attempt int not null default 0, owner bigint,
          run_at timestamptz not null default now(), lease_expires_at timestamptz,
          created_at timestamptz not null default now(), finished_at timestamptz,
          payload {self.payload_type} not null, result {self.payload_type})
          with (fillfactor=100, {AUTOVACUUM});
        create index runs_ready on runs(queue, priority, run_at, id) where state=0;
        create index runs_leased on runs(lease_expires_at) where state=1;"""

    def fill(self, finished: bool, low: int, high: int) -> str:
        state, at = (2, "now()") if finished else (0, "null")
        return f"""insert into runs(id,queue,state,finished_at,payload)
          select {self.id_of_g},1,{state},{at},'{PAYLOAD_TEXT}'::{self.payload_type}
          from {self._series(low, high)}"""

    pending_ids, claim_ids, claim_scan = _partial_claims("runs")

    @property
    def settle(self) -> str:
        return f"""update runs r set state=2, finished_at=now(), owner=null,
        lease_expires_at=null, result=u.result
      from unnest($1::{self.id_type}[], $2::int[], $4::{self.payload_type}[]) u(id,attempt,result)
      where r.id=u.id and r.attempt=u.attempt and r.owner=$3 returning r.id"""


class Archive(Shape):
    """A live table with partial indexes; settling deletes there and appends to an archive."""

    name = "v4_archive"
    fillfactor: ClassVar[int] = 100
    indexes: ClassVar[str] = (
        "create index live_ready on live(queue, priority, run_at, id) where state=0;"
        " create index live_leased on live(lease_expires_at) where state=1;"
    )

    def create(self) -> str:
        return f"""{self._anew()}
        create table live(id {self.id_type} primary key, queue int not null,
          state smallint not null, priority smallint not null default 0,
          attempt int not null default 0, owner bigint,
          run_at timestamptz not null default now(), lease_expires_at timestamptz,
          created_at timestamptz not null default now(), payload {self.payload_type} not null)
          with (fillfactor={self.fillfactor}, {AUTOVACUUM});
        {self.indexes}
        create table done(id {self.id_type} primary key, queue int not null,
          state smallint not null, attempt int not null, created_at timestamptz not null,
          finished_at timestamptz not null, payload {self.payload_type} not null,
          result {self.payload_type});"""

    def fill(self, finished: bool, low: int, high: int) -> str:
        payload = f"'{PAYLOAD_TEXT}'::{self.payload_type}"
        if not finished:
            return f"""insert into live(id,queue,state,payload)
              select {self.id_of_g},1,0,{payload} from {self._series(low, high)}"""
        return f"""insert into done(id,queue,state,attempt,created_at,finished_at,payload)
          select {self.id_of_g},1,2,1,now(),now(),{payload} from {self._series(low, high)}"""

    pending_ids, claim_ids, claim_scan = _partial_claims("live")

    @property
    def settle(self) -> str:
        return f"""with d as (delete from live r
      using unnest($1::{self.id_type}[], $2::int[], $4::{self.payload_type}[]) u(id,attempt,result)
      where r.id=u.id and r.attempt=u.attempt and r.owner=$3 returning r.*, u.result)
      insert into done(id,queue,state,attempt,created_at,finished_at,payload,result)
      select id,queue,2,attempt,created_at,now(),payload,result from d returning id"""


class HotArchive(Archive):
    """As the archive, but no index mentions a column that claiming changes: claims are HOT updates.

    Leased rows stay in the ready index until they are settled (few of them); a lease's expiry would
    live on its owner's row.
    """

    name = "v6_hot_archive"
    fillfactor = 70
    indexes = "create index live_ready on live(queue, priority, run_at, id);"


class Visibility(Archive):
    """As brokers do: `run_at` is the visibility deadline too; one index besides the key."""

    name = "v7_visibility"
    indexes = "create index live_vt on live(queue, run_at, id);"
    _hidden = "state=1, attempt=attempt+1, owner=$2, run_at=now()+make_interval(secs=>$3)"
    claim_ids = _claim(
        "live",
        "select id from live where id = any($1) and run_at<=now() order by id",
        _hidden,
    )
    claim_scan = _claim(
        "live",
        "select id from live where queue=1 and run_at<=now() order by run_at, id limit $1",
        _hidden,
    )


class Split(Shape):
    """Rows written at enqueue and settle alone (HOT); narrow side tables for ready and leased.

    A claim deletes from `ready` and inserts into `leases`; settling deletes there again.
    """

    name = "v5_split"
    live_table = "ready"

    def create(self) -> str:
        return f"""{self._anew()}
        create table runs(id {self.id_type} primary key, queue int not null,
          state smallint not null, attempt int not null default 0,
          created_at timestamptz not null default now(), finished_at timestamptz,
          payload {self.payload_type} not null, result {self.payload_type})
          with (fillfactor=85, {AUTOVACUUM});
        create table ready(id {self.id_type} primary key, queue int not null,
          priority smallint not null default 0, attempt int not null default 0,
          run_at timestamptz not null default now()) with ({AUTOVACUUM});
        create index ready_q on ready(queue, priority, run_at, id);
        create table leases(id {self.id_type} primary key, attempt int not null,
          owner bigint not null, expires_at timestamptz not null) with ({AUTOVACUUM});
        create index leases_exp on leases(expires_at);"""

    def fill(self, finished: bool, low: int, high: int) -> str:
        payload = f"'{PAYLOAD_TEXT}'::{self.payload_type}"
        if not finished:
            return f"""with i as (insert into runs(id,queue,state,payload)
              select {self.id_of_g},1,0,{payload} from {self._series(low, high)} returning id)
              insert into ready(id,queue) select id,1 from i"""
        return f"""insert into runs(id,queue,state,attempt,finished_at,payload)
          select {self.id_of_g},1,2,1,now(),{payload} from {self._series(low, high)}"""

    pending_ids = "select id from ready where queue=1 order by queue, priority, run_at, id limit $1"
    _moved = """
      d as (delete from ready r using c where r.id=c.id returning r.id, r.attempt+1 as attempt),
      l as (insert into leases(id,attempt,owner,expires_at)
        select id,attempt,$2,now()+make_interval(secs=>$3) from d)
      select d.id, d.attempt, runs.payload from d join runs on runs.id=d.id"""
    claim_ids = (
        "with c as (select id from ready where id = any($1) and run_at<=now() order by id"
        f" for update skip locked),{_moved}"
    )
    claim_scan = (
        "with c as (select id from ready where queue=1 and run_at<=now()"
        f" order by priority, run_at, id limit $1 for update skip locked),{_moved}"
    )

    @property
    def settle(self) -> str:
        return f"""with d as (delete from leases l
      using unnest($1::{self.id_type}[], $2::int[], $4::{self.payload_type}[]) u(id,attempt,result)
      where l.id=u.id and l.attempt=u.attempt and l.owner=$3
      returning l.id, l.attempt, u.result)
      update runs r set state=2, finished_at=now(), attempt=d.attempt, result=d.result
      from d where r.id=d.id returning r.id"""


SHAPES: dict[str, type[Shape]] = {
    shape.name: shape for shape in (Naive, Partial, Archive, Split, HotArchive, Visibility)
}
