"""Regular expressions that clients send, compiled by RE2, as in Kafka.

RE2 matches in time linear to the name, whatever the pattern. The rest is bounded here, because the event loop waits for
it: a class such as `\\PL` has hundreds of ranges, so that a pattern of a kilobyte could take seconds to compile, and a
counted repetition of a few bytes could become a program of megabytes.
"""

from typing import Any

from penstock.errors import ErrorCode, KafkaError

COMPILE_BYTES_MAX = 256 * 1024
"""The memory that RE2 may use for one pattern; it refuses a pattern that needs more, after a few milliseconds."""
INSTRUCTIONS_MAX = 4_000
"""The size of a program, which is what each letter of a name costs at worst. 1,000 letters have 1,000 instructions, and
`.{1,249}`, any name of a topic, has 2,300."""
UNICODE_CLASSES_MAX = 10
"""`\\p` and `\\P`; each takes up to a millisecond to compile. Names of topics have no letters beyond ASCII."""


def compile_pattern(pattern: str, field: str) -> Any:
    """An expression with `fullmatch`. KafkaError: RE2 does not know it, or it is too costly. The caller bounds its
    length."""
    import re2

    if pattern.count("\\p") + pattern.count("\\P") > UNICODE_CLASSES_MAX:
        raise _refused(f"{field}: more than {UNICODE_CLASSES_MAX} classes of Unicode (\\p)")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = COMPILE_BYTES_MAX
    try:
        compiled = re2.compile(pattern, options)
    except re2.error:
        raise _refused(f"{field}: {pattern!r} is not a regular expression of RE2, or too large") from None
    if compiled.programsize > INSTRUCTIONS_MAX:
        raise _refused(f"{field}: {compiled.programsize} instructions, expected at most {INSTRUCTIONS_MAX}")
    return compiled


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
