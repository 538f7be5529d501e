"""What holds after every operation, whatever was done to a store."""

from __future__ import annotations

from tests.store.acting import rows
from workhorse.store.base.database import Store

_NONE_OF = {
    "a run that is neither unfinished nor finished": """
        select r.id from {s}runs r
         where not exists (select 1 from {s}live l where l.id = r.id)
           and not exists (select 1 from {s}outcomes o where o.id = r.id)""",
    "a run that is unfinished and finished": """
        select l.id from {s}live l join {s}outcomes o on o.id = l.id""",
    "a live row without its run": """
        select l.id from {s}live l where not exists (select 1 from {s}runs r where r.id = l.id)""",
    "an outcome without its run": """
        select o.id from {s}outcomes o
         where not exists (select 1 from {s}runs r where r.id = o.id)""",
    "a failed attempt without its run": """
        select a.run_id from {s}attempts a
         where not exists (select 1 from {s}runs r where r.id = a.run_id)""",
    "a failed attempt that the run has not come to": """
        select a.run_id from {s}attempts a
          left join {s}live l on l.id = a.run_id left join {s}outcomes o on o.id = a.run_id
         where a.attempt > coalesce(o.attempt, l.attempt - 1)""",
    "a spent attempt that left no failure": """
        select l.id from {s}live l
         where l.attempt - 1 <> (select count(*) from {s}attempts a where a.run_id = l.id)""",
    "a key whose run is not there": """
        select k.run_id from {s}keys k
         where not exists (select 1 from {s}runs r where r.id = k.run_id)""",
    "a rerun of a run that is not there": """
        select n.id from {s}runs n where n.rerun_of is not null
           and not exists (select 1 from {s}runs r where r.id = n.rerun_of)""",
    "a live row that says something else than its run": """
        select l.id from {s}live l join {s}runs r on r.id = l.id
         where l.task <> r.task or l.queue <> r.queue or l.rank <> 100 - r.priority
            or coalesce(l.session, '') <> coalesce(r.session, '')""",
    "a token on a run that is not running, or a running run without one": """
        select id from {s}live where (state = 'running') <> (token is not null)
            or (state = 'running') <> (lease_expires_at is not null)""",
    "a running run that was never claimed or never started": """
        select id from {s}live where state = 'running' and (fence < 1 or started_at is null)""",
    "a due time on a run that is ready or running": """
        select id from {s}live where state in ('ready', 'running') and due_at is not null""",
    "a scheduled run that is never due": """
        select id from {s}live where state = 'scheduled' and due_at is null""",
    "a ready run without an age, or another with one": """
        select id from {s}live where (state = 'ready') <> (ready_at is not null)""",
    "a cancel asked for a run that is not running": """
        select id from {s}live where cancel_asked_at is not null and state <> 'running'""",
    "a session with two runs at work": """
        select session from {s}live where session is not null and state = 'running'
         group by session having count(*) > 1""",
    "a success without a lease or a result": """
        select id from {s}outcomes where state = 'succeeded'
           and (fence < 1 or token is null or result is null or started_at is null)""",
    "an end that was cancelled without anybody who asked": """
        select o.id from {s}outcomes o where o.state = 'cancelled'
           and not exists (select 1 from {s}audit a where a.act = 'cancel' and a.subject = {id})
           and not exists (select 1 from {s}runs r where r.id = o.id
                            and (r.parent_id is not null or r.on_failure = 'cancel'))""",
    "a boundary without its run": """
        select b.run_id, b.name from {s}boundaries b
         where not exists (select 1 from {s}runs r where r.id = b.run_id)""",
    "a delivery without its run": """
        select d.run_id, d.name from {s}deliveries d
         where not exists (select 1 from {s}runs r where r.id = d.run_id)""",
    "progress without its run": """
        select p.run_id from {s}progress p
         where not exists (select 1 from {s}runs r where r.id = p.run_id)""",
    "a child whose parent is not there": """
        select n.id from {s}runs n where n.parent_id is not null
           and not exists (select 1 from {s}runs r where r.id = n.parent_id)""",
    "a delivery that its run has not counted": """
        select d.run_id, d.name from {s}deliveries d join {s}live l on l.id = d.run_id
         where d.inbox > l.inbox""",
    "a link to a run that is not there": """
        select k.source, k.run_id from {s}links k
         where not exists (select 1 from {s}runs r where r.id = k.run_id)""",
    "a run whose links differ from what it counts, or that runs before those it comes after": """
        select l.id from {s}live l
         where l.blockers <> (select count(*) from {s}links k
                               where k.run_id = l.id and k.kind = 'after')
            or l.blockers > 0 and l.state <> 'waiting'""",
    "a run that frees another by its end, which nobody will note": """
        select k.source, k.run_id from {s}links k join {s}live l on cast(l.id as text) = k.source
         where k.armed and not l.watched""",
    "a link from what has come to its end, of which there is no note": """
        select k.source, k.run_id from {s}links k
         where k.armed and not exists (select 1 from {s}freed f where f.source = k.source)
           and (exists (select 1 from {s}outcomes o where cast(o.id as text) = k.source)
             or exists (select 1 from {s}tokens t where t.ref = k.source and t.state <> 'open'))""",
    "a note of an end that has not come": """
        select f.source from {s}freed f
         where f.source not like 'cancel:%'
           and not exists (select 1 from {s}outcomes o where cast(o.id as text) = f.source)
           and not exists (select 1 from {s}tokens t
                            where t.ref = f.source and t.state <> 'open')""",
    "a token's delivery that says something else than its token": """
        select d.run_id, d.name from {s}deliveries d
          join {s}boundaries b on b.run_id = d.run_id and b.name = d.name and b.kind = 'token'
          join {s}tokens t on b.detail = '"' || t.ref || '"'
         where d.kind = 'token' and d.state in ('value', 'timed_out')
           and (t.state <> d.state or coalesce(t.value, '') <> coalesce(d.value, ''))""",
    "a run whose view differs from its rows": """
        select r.id from {s}runs r where 1 <> (select count(*) from {s}run_view v
         where v.id = r.id and v.state is not null and v.attempt >= 1 and v.fence >= 0)""",
}


def check_invariants(store: Store) -> None:
    """Look at all tables: every run is in exactly one place, and all references lead somewhere."""
    as_text = "o.id::text" if store.kind == "postgresql" else "o.id"
    broken = {
        what: found
        for what, sql in _NONE_OF.items()
        if (found := rows(store, sql.replace("{id}", as_text)))
    }
    assert not broken, broken
