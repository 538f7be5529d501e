"""Durable execution: each call of the contexts is written here once, for plain and async handlers.

A call is a generator that does no I/O: it yields what it needs (an operation to be called, an
answer to be waited for) and is driven by `driving`, which knows threads and event loops.

Source: docs/design.md, section 7.
"""
