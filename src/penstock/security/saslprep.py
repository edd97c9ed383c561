"""SASLprep (RFC 4013): one form for texts that look alike, before they are hashed.

A password of ASCII characters is its own form. Others are mapped (soft hyphens vanish, every kind of space becomes
one), normalised (NFKC), and refused if they contain characters that cannot be typed twice the same way: control
characters, private use, and left-to-right mixed with right-to-left.
"""

import stringprep
import unicodedata

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,  # code points that Unicode 3.2 does not assign: RFC 4013 refuses them in stored texts
)


def saslprep(text: str) -> str:
    """The prepared form. ValueError says what is not allowed in the text, without quoting it."""
    if text.isascii():
        if not text.isprintable():
            raise ValueError("control characters are not allowed")
        return text
    mapped = (" " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c))
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", "".join(mapped))
    if any(prohibited(c) for c in prepared for prohibited in _PROHIBITED):
        raise ValueError("control characters and unassigned characters are not allowed")
    _check_directions(prepared)
    return prepared


def _check_directions(text: str) -> None:
    if not any(map(stringprep.in_table_d1, text)):
        return
    ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
    if not ends or any(map(stringprep.in_table_d2, text)):
        raise ValueError("right-to-left text must not be mixed with left-to-right text")
