"""Mails in bulk: one call to a provider for many runs, each of which ends by itself.

Run it with `python examples/batch_mails.py`. The testing kit stands in for the database and the
workers.
"""

from __future__ import annotations

from datetime import timedelta

from workhorse import BatchItem, NonRetryableError, RetryPolicy, Workhorse
from workhorse.errors import RunFailedError
from workhorse.testing import Kit

app = Workhorse()

AT_ONCE = RetryPolicy(first=timedelta(0))


class Provider:
    """Stands in for a service that takes many mails in one request, and answers for each."""

    def __init__(self) -> None:
        self.busy = {"bob@example.org"}

    def send(self, mails: dict[str, str]) -> dict[str, str | Exception]:
        """Send mails, each under an idempotency key."""
        print(f"provider: {len(mails)} mails in one request")
        answers: dict[str, str | Exception] = {}
        for key, address in mails.items():
            if address in self.busy:
                self.busy.remove(address)
                answers[key] = ConnectionError(f"the server of {address} is busy")
            else:
                answers[key] = f"sent to {address}"
        return answers


provider = Provider()


@app.task("mails.send", batch=50, retry=AT_ONCE)
def send(items: list[BatchItem[str]]) -> list[str | Exception | None]:
    for item in items:
        if "@" not in item.payload:
            item.fail(NonRetryableError(f"{item.payload!r} is no address"))
    mails = {item.run.id: item.payload for item in items if not item.decided}
    answers = provider.send(mails)
    return [answers.get(item.run.id) for item in items]


def main() -> None:
    """Send four mails, of which one is refused for now, and one for good."""
    with Kit(app, concurrency=10) as kit:
        people = ["ann@example.org", "bob@example.org", "cleo", "dan@example.org"]
        runs = [send.enqueue(address) for address in people]
        kit.run_until_idle()

        for run in runs:
            attempt = run.view().attempt
            try:
                print(f"{run.result()}, attempt {attempt}")
            except RunFailedError as error:
                print(f"{error.reason}, attempt {attempt}: {error.error_message}")


if __name__ == "__main__":
    main()
