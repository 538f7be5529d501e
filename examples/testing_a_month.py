"""A handler that takes a month is tested in a moment: by a clock that the test moves.

Run it with `python examples/testing_a_month.py`. The two tests are plain functions here; under
pytest the fixture `workhorse_kit` takes the place of the `with` block.
"""

from __future__ import annotations

from datetime import timedelta

from workhorse import Context, Workhorse
from workhorse.testing import Kit, ReplayDivergenceError, check_replay

app = Workhorse(database_url="postgresql://shop@db.example/orders")  # never reached by the tests
sent: list[str] = []


@app.task("customers.welcome")
def welcome(ctx: Context, name: str) -> str:
    ctx.checkpoint("welcome mail", lambda: sent.append(f"welcome, {name}"))
    ctx.sleep("a month", timedelta(days=30))
    answer = ctx.wait_for_signal("survey", timeout=timedelta(days=7), default="no answer")
    ctx.checkpoint("thanks", lambda: sent.append(f"thank you, {name}"))
    return str(answer)


def test_a_month_goes_by() -> None:
    with Kit(app) as kit:
        run = welcome.enqueue("Ann")
        kit.run_until_idle()
        assert sent == ["welcome, Ann"]

        kit.advance(timedelta(days=30))
        kit.run_until_idle()
        app.send_signal(run.id, "survey", "very good")
        kit.run_until_idle()

        print(f"{sent}, result: {run.result()}, attempts: {run.view().attempt}")


def test_the_process_dies_behind_the_first_mail() -> None:
    with Kit(app) as kit:
        run = welcome.enqueue("Bob")
        kit.crash_after("welcome mail")
        kit.run_until_idle()
        print(f"after the crash: {run.view().state}, {sent}")

        kit.run_to_end(run)  # the lease runs out, a month goes by, the survey times out
        print(f"{sent}, result: {run.result()}, attempts: {run.view().attempt}")


def test_changed_code_with_a_run_that_sleeps() -> None:
    with Kit(app) as kit:
        run = welcome.enqueue("Cleo")
        kit.run_until_idle()
        exported = app.admin.export(run.id)  # or a file of `workhorse runs export`

    print(f"as it is: {check_replay(welcome, exported).ended}")

    def changed(ctx: Context, name: str) -> None:
        ctx.checkpoint("welcome mail", lambda: sent.append(name))
        ctx.checkpoint("voucher", lambda: sent.append("voucher"))
        ctx.sleep("a month", timedelta(days=30))

    try:
        check_replay(changed, exported)
    except ReplayDivergenceError as found:
        print(f"changed: expected {found.expected}, came {found.came}")


if __name__ == "__main__":
    for test in (
        test_a_month_goes_by,
        test_the_process_dies_behind_the_first_mail,
        test_changed_code_with_a_run_that_sleeps,
    ):
        sent.clear()
        test()
