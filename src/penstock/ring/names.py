"""Names of cliques, workers and streams: one rule for brokers and clients, on every carrier, so that a program can
change its carrier. Topics of Kafka, subjects of NATS and URLs take such names alike."""

import re
from typing import Final

NAME_CHARS_MAX: Final = 200
"""They are part of topic names (249 characters), subjects and URLs."""
NAME_PATTERN: Final = r"^[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*$(?!\n)"
"""For JSON Schema, too: `$` alone would take a line break behind the name."""
NAME_RULE: Final = (
    f"1 to {NAME_CHARS_MAX} of a-z, A-Z, 0-9, '.', '_' and '-', with dots only between other letters"
)

_NAME: Final = re.compile(NAME_PATTERN)


def is_name(name: str) -> bool:
    return len(name) <= NAME_CHARS_MAX and _NAME.search(name) is not None
