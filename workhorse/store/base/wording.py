"""What SQL that somebody else wrote would do to the transaction it is run in, by its words.

Source: docs/adr/0014-a-handlers-own-transaction.md
"""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r"\s*(?:select|insert|update|delete|with)\b[^;]*;?\s*", re.IGNORECASE)
_LITERALS: Final = re.compile(
    r"""
      [eE]'(?:[^'\\]|\\.|'')*'            # a string with escapes
    | '(?:[^']|'')*'                      # a string
    | "(?:[^"]|"")*"                      # a name
    | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$     # a string between dollars
    | --[^\n]*                            # comments
    | /\*.*?\*/
    """,
    re.VERBOSE | re.DOTALL,
)
_ENDING: Final = re.compile(
    r"(?P<word>commit|end|abort|begin|start\s+transaction|prepare\s+transaction"
    r"|rollback(?!(?:\s+(?:work|transaction))?\s+to\b))\b",
    re.IGNORECASE,
)
_BODY: Final = re.compile(r"\bbegin\s+atomic\b|\bcreate\b.*\btrigger\b", re.IGNORECASE | re.DOTALL)


def ending_in(sql: str) -> str | None:
    """Return what in some SQL would end, or begin, a transaction; None where nothing would.

    Savepoints are nobody's end. What stands in strings, names and comments does not count.
    """
    if _PLAIN.fullmatch(sql):
        return None
    bare = _LITERALS.sub(" ", sql)
    has_body = _BODY.search(bare) is not None
    for part in bare.split(";"):
        found = _ENDING.match(part.strip())
        if found is not None:
            word = " ".join(found["word"].upper().split())
            if not (has_body and word == "END"):
                return word
    return None
