"""Statements are built with SQLAlchemy Core once, and run as text on the driver.

Building a Core statement for each call costs more than the database does, so an operation asks for
its statement by the function that builds it; the text is kept for the store's life.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.sql.expression import Executable

from workhorse.store.base.dialect import CLOCK, Dialect

Builder = Callable[..., Executable]
"""Builds a statement from the dialect, and from hashable arguments that choose its form."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement as text, with the values it brings along."""

    sql: str
    defaults: dict[str, Any]
    needs_clock: bool


class Statements:
    """The statements of a store, compiled at first use."""

    def __init__(self, dialect: Dialect, schema: str | None) -> None:
        self._dialect = dialect
        self._translate = {None: schema} if schema else None
        self._prepared: dict[tuple[Builder, tuple[Hashable, ...]], Prepared] = {}

    def prepare(self, builder: Builder, *form: Hashable) -> Prepared:
        """Return a builder's statement in the given form."""
        prepared = self._prepared.get((builder, form))
        if prepared is None:
            prepared = self._compile(builder(self._dialect, *form))
            self._prepared[builder, form] = prepared  # two threads may both get here: the same text
        return prepared

    def _compile(self, statement: Executable) -> Prepared:
        compiled = statement.compile(  # type: ignore[attr-defined]
            dialect=self._dialect.sqlalchemy,
            schema_translate_map=self._translate,
            render_schema_translate=self._translate is not None,
        )
        params = dict(compiled.params)
        needs_clock = params.pop(CLOCK, self) is not self
        return Prepared(
            sql=str(compiled),
            defaults={name: value for name, value in params.items() if value is not None},
            needs_clock=needs_clock,
        )
