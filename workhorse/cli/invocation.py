"""One command line while it runs: what it was told, the app it works for, and its output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from workhorse.errors import ConfigurationError

if TYPE_CHECKING:
    from workhorse.app import Workhorse
    from workhorse.cli.rendering import Renderer


class Invocation:
    """What the options said, kept until a command asks for it; closing it closes the app."""

    def __init__(self) -> None:
        self.json = False
        self.app_named: str | None = None
        """The app of this command line: `module:attribute`; None where none was named."""
        self.settings: dict[str, Any] = {}
        """Settings that were given as options, by name."""
        self._renderer: Renderer | None = None
        self._log_level: str | None = None
        self._closing = ExitStack()

    def take(self, options: Mapping[str, Any]) -> None:
        """Take global options; what was given later, and behind the command, comes first.

        Raises:
            ConfigurationError: An option that should hold JSON does not.
        """
        for name, value in options.items():
            if value is None or (name == "json" and not value):
                continue
            if name == "json":
                self.json = True
            elif name == "app":
                self.app_named = value
            elif name == "sqs_queue_urls":
                self.settings[name] = _json_object(name, value)
            else:
                self.settings[name] = value

    @property
    def renderer(self) -> Renderer:
        """Where the command's answer goes."""
        if self._renderer is None or self._renderer.json != self.json:
            from workhorse.cli.rendering import Renderer

            self._renderer = Renderer(json=self.json)
        return self._renderer

    @property
    def wants_traceback(self) -> bool:
        """Whether errors are shown with their traceback: at the log level DEBUG."""
        return (self._log_level or str(self.settings.get("log_level"))).upper() == "DEBUG"

    def open(self, *, tasks: bool = False, long_running: bool = False) -> Workhorse:
        """Return the app: the one that was named, else one without tasks, from settings alone.

        Args:
            tasks: Whether the command needs the app's tasks.
            long_running: Whether the log tells of more than trouble.

        Raises:
            ConfigurationError: No app was named and tasks are needed; or the app cannot be loaded,
                or a setting is wrong.
        """
        from workhorse.cli.loading import load_app
        from workhorse.cli.logs import set_up_logging
        from workhorse.settings import doubts, load_settings, overriding
        from workhorse.telemetry import get_logger

        self._closing.enter_context(overriding(self.settings))
        settings = load_settings()
        self._log_level = settings.log_level
        self.app_named = self.app_named or settings.app or None
        if self.app_named is not None:
            app = load_app(self.app_named)
        elif tasks:
            raise ConfigurationError(
                "this command needs an app's tasks; name the app with --app module:attribute or "
                "in WORKHORSE_APP"
            )
        else:
            from workhorse.app import Workhorse

            app = Workhorse()
        set_up_logging(app.settings, long_running=long_running)
        if tasks or long_running:  # the others look and act only; `doctor` tells of them too
            for doubt in doubts(app.settings):
                get_logger("settings").warning("%s; %s", doubt.message, doubt.advice)
        self._closing.callback(app.close)
        return app

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.close()


def _json_object(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"settings: {name}: the text is no JSON: {error}") from None
    except RecursionError:
        raise ConfigurationError(f"settings: {name}: the text is nested too deep") from None
