"""Which SQS queue a queue name stands for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lanes.sqs.addresses import Address, Addresses, parse_address
from workhorse.errors import ConfigurationError
from workhorse.settings import load_settings


def addresses(**settings: Any) -> Addresses:
    return Addresses(load_settings(**settings))


def test_a_name_is_prefix_environment_and_queue() -> None:
    assert addresses().of("orders") == Address("workhorse-orders")
    assert addresses(environment="stage").of("orders").name == "workhorse-stage-orders"
    assert addresses(sqs_queue_prefix="").of("orders").name == "orders"


def test_fifo_queues_end_in_fifo() -> None:
    address = addresses(sqs_fifo=True).of("orders")
    assert address.name == "workhorse-orders.fifo"
    assert address.fifo
    assert not addresses().of("orders").fifo


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("plain-name_1", Address("plain-name_1")),
        (" padded ", Address("padded")),
        ("ordered.fifo", Address("ordered.fifo")),
        (
            "arn:aws:sqs:eu-west-1:123456789012:orders",
            Address("orders", owner="123456789012", region="eu-west-1"),
        ),
        (
            "arn:aws-cn:sqs:cn-north-1:123456789012:orders.fifo",
            Address("orders.fifo", owner="123456789012", region="cn-north-1"),
        ),
        (
            "https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
            Address(
                "orders",
                url="https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
                owner="123456789012",
                region="eu-west-1",
            ),
        ),
        (
            "https://eu-west-1.queue.amazonaws.com/123456789012/orders",
            Address(
                "orders",
                url="https://eu-west-1.queue.amazonaws.com/123456789012/orders",
                owner="123456789012",
                region="eu-west-1",
            ),
        ),
        (
            "http://127.0.0.1:4566/000000000000/orders.fifo",
            Address(
                "orders.fifo",
                url="http://127.0.0.1:4566/000000000000/orders.fifo",
                owner="000000000000",
            ),
        ),
    ],
)
def test_an_address_is_a_url_an_arn_or_a_name(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert addresses(sqs_queue_urls={"q": text}).of("q") == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "x" * 81,
        "x" * 76 + ".fifo",
        "dotted.name",
        "http://127.0.0.1:4566",
        "http://127.0.0.1:4566/000000000000/",
        "http://127.0.0.1/1/a b",
        "arn:aws:sns:eu-west-1:123456789012:topic",
        "arn:aws:sqs:eu-west-1:123456789012:",
        "ftp://host/1/q",
        "http://[1/1/q",
    ],
)
def test_anything_else_is_refused_by_the_name_of_its_setting(text: str) -> None:
    with pytest.raises(ConfigurationError, match="sqs_queue_urls\\[q\\]"):
        addresses(sqs_queue_urls={"q": text})


def test_a_configured_queue_whose_name_gets_too_long_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="at most 80 characters"):
        addresses(queues=("q" * 60,), environment="e" * 20)


def test_queue_names_are_checked_on_both_sides() -> None:
    with pytest.raises(ConfigurationError, match="Not A Queue"):
        addresses(sqs_queue_urls={"Not A Queue": "orders"})
    with pytest.raises(ConfigurationError, match="Not A Queue"):
        addresses().of("Not A Queue")


class Source:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []

    async def queue_url(self, name: str, owner: str | None) -> str:
        self.asked.append((name, owner))
        return f"http://sqs/{len(self.asked)}/{name}"


def test_a_url_is_asked_for_once_until_it_is_forgotten() -> None:
    found, source = addresses(sqs_queue_urls={"far": "arn:aws:sqs:r-1:123456789012:far"}), Source()

    async def urls() -> list[str]:
        first = [await found.url(source, "q"), await found.url(source, "q")]
        found.forget("q")
        return [*first, await found.url(source, "q"), await found.url(source, "far")]

    first, second, third, _ = asyncio.run(urls())
    assert first == second != third
    assert source.asked == [("workhorse-q", None)] * 2 + [("far", "123456789012")]


def test_a_url_that_was_given_is_asked_of_nobody() -> None:
    url = "http://127.0.0.1:4566/000000000000/orders"
    found, source = addresses(sqs_queue_urls={"q": url}), Source()
    found.forget("q")
    assert asyncio.run(found.url(source, "q")) == url
    assert source.asked == []
