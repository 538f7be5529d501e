"""One token opens the gate for many runs; another carries a provider's answer back to its run.

Run it with `python examples/release.py`. The testing kit stands in for the database, the worker and
the time.
"""

from __future__ import annotations

from datetime import timedelta

from workhorse import Context, Workhorse
from workhorse.testing import Kit

app = Workhorse()


@app.task("films.transcode")
def transcode(ctx: Context, film: str) -> str:
    callback = ctx.token("callback", timeout=timedelta(hours=6))
    ctx.checkpoint("order", lambda: order(film, callback, idempotency_key=film))
    url = ctx.wait_for_token("done", callback, default=None)
    return "the studio has not answered" if url is None else str(url)


@app.task("films.publish")
def publish(ctx: Context, job: dict[str, str]) -> str:
    at = ctx.wait_for_token("premiere", job["gate"])
    return f"{job['film']} out on {at}"


# -- what is outside: a studio that calls back --

callbacks: dict[str, str] = {}


def order(film: str, callback: str, *, idempotency_key: str) -> None:
    print(f"studio: {film} is ordered, key {idempotency_key}")
    callbacks[film] = callback  # in a shop: a part of the URL that the studio calls


def main() -> None:
    """Transcode two films, of which one is never finished; publish two at once."""
    with Kit(app) as kit:
        one, two = transcode.enqueue("Vertigo"), transcode.enqueue("Ran")
        kit.run_until_idle()
        for _ in range(2):  # the studio calls twice
            print("studio calls:", app.complete_token(callbacks["Vertigo"], "/vertigo.mp4"))
        kit.run_until_idle()
        print(one.result())
        kit.advance(timedelta(hours=6))
        kit.run_until_idle()
        print(two.result())

        gate = app.create_token()
        films = [publish.enqueue({"film": film, "gate": gate}) for film in ("Vertigo", "Ran")]
        kit.run_until_idle()
        app.complete_token(gate, "Friday", idempotency_key="the premiere")
        films.append(publish.enqueue({"film": "Solaris", "gate": gate}))  # finds it open
        kit.run_until_idle()
        print([film.result() for film in films])


if __name__ == "__main__":
    main()
