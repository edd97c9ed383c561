"""The text of an exception, for dead letters, replies and log lines: it is always text, of a bounded length."""

from typing import Final

ERROR_TYPE_MAX: Final = 200
ERROR_TEXT_MAX: Final = 1_000
"""Characters of an error that a dead letter tells; the broker cuts longer ones, too."""


def error_text(error: BaseException | str) -> str:
    """Names of files may hold half of a surrogate pair, which UTF-8 cannot encode: it is replaced by a question mark.
    An exception whose text cannot be made must not cost its job."""
    try:
        text = str(error)
    except Exception as wrong:  # noqa: BLE001 - any error of the application's own __str__
        text = f"its text cannot be made: {type(wrong).__name__}"
    return _encodable(text[:ERROR_TEXT_MAX])


def is_told_whole(error: BaseException) -> bool:
    """Whether the text of the error is neither cut nor changed."""
    try:
        return error_text(error) == str(error)
    except Exception:  # noqa: BLE001 - as above
        return False


def error_type(error: BaseException) -> str:
    return _encodable(type(error).__name__[:ERROR_TYPE_MAX])


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()
