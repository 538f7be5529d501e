"""All kinds of input that are fuzzed."""

from __future__ import annotations

from typing import Final

from tests.fuzz.kind import Kind
from tests.fuzz.kinds.answers import KINDS as ANSWERS
from tests.fuzz.kinds.asynchronous import KINDS as ASYNCHRONOUS
from tests.fuzz.kinds.bells import KINDS as BELLS
from tests.fuzz.kinds.calls import KINDS as CALLS
from tests.fuzz.kinds.commands import KINDS as COMMANDS
from tests.fuzz.kinds.cursors import KINDS as CURSORS
from tests.fuzz.kinds.documents import KINDS as DOCUMENTS
from tests.fuzz.kinds.frames import KINDS as FRAMES
from tests.fuzz.kinds.functions import KINDS as FUNCTIONS
from tests.fuzz.kinds.health import KINDS as HEALTH
from tests.fuzz.kinds.messages import KINDS as MESSAGES
from tests.fuzz.kinds.names import KINDS as NAMES
from tests.fuzz.kinds.outputs import KINDS as OUTPUTS
from tests.fuzz.kinds.processes import KINDS as PROCESSES
from tests.fuzz.kinds.running import KINDS as RUNNING
from tests.fuzz.kinds.settings import KINDS as SETTINGS
from tests.fuzz.kinds.values import KINDS as VALUES

KINDS: Final[tuple[Kind, ...]] = (
    *MESSAGES,
    *VALUES,
    *NAMES,
    *CALLS,
    *ASYNCHRONOUS,
    *RUNNING,
    *SETTINGS,
    *DOCUMENTS,
    *FRAMES,
    *OUTPUTS,
    *HEALTH,
    *ANSWERS,
    *BELLS,
    *CURSORS,
    *FUNCTIONS,
    *COMMANDS,
    *PROCESSES,
)
