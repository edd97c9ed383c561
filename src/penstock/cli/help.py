"""The layout of help pages: each one ends with commands that can be copied."""


def examples(*lines: str) -> str:
    """An epilogue for click that lists commands, one per line, exactly as written."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
