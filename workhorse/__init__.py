"""Durable background runs: the truth in a relational store, wakeups over SQS."""
