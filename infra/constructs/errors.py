"""What a construct says about arguments that cannot work."""

from __future__ import annotations

from constructs import Construct


class ArgumentError(ValueError):
    """An argument of a construct would give a deployment that does not work.

    Attributes:
        construct: The construct's path in the app.
        argument: The argument's name.
    """

    def __init__(self, construct: str, argument: str, problem: str) -> None:
        super().__init__(f"{construct}: {argument} {problem}")
        self.construct = construct
        self.argument = argument


def path_of(scope: Construct, construct_id: str) -> str:
    """Return the path that a construct has, or is going to have."""
    return "/".join(part for part in (scope.node.path, construct_id) if part)


def check_range(
    construct: str, argument: str, value: float, low: float, high: float, because: str
) -> None:
    """Refuse a number outside of a range.

    Raises:
        ArgumentError: It is.
    """
    if not low <= value <= high:
        raise ArgumentError(
            construct, argument, f"is {value:g}; give {low:g} to {high:g}: {because}"
        )
