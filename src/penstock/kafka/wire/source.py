"""Writing Python source: shared by the two code generators (decoder.py, encoder.py).

A codec function is compiled on first use for one class and one version, as `dataclasses` does, so that the
running code has no table to interpret: nested structs become nested loops, and neighbours of fixed width
become one `struct` call. Each line remembers the field that it was written for: when a line raises, its
number says which field of the peer's bytes was wrong, and the good path pays nothing for that.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any


class Source:
    """Lines of one function, with the field that each belongs to."""

    def __init__(self, head: str) -> None:
        self.lines = [head]
        self.fields = [""]
        self.depth = 1
        self.names: dict[str, Any] = {}
        self._count = 0

    def emit(self, line: str, field: str) -> None:
        self.lines.append("    " * self.depth + line)
        self.fields.append(field)

    def new(self, prefix: str) -> str:
        """A name for a local variable that no other has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def share(self, prefix: str, thing: object) -> str:
        """A global name of the function for a thing made here."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = thing
        return name

    def share_struct(self, letters: str, method: str) -> str:
        """A global name for a bound method of `struct.Struct`, one for each layout."""
        name = f"{method}_{letters.replace('?', 'o')}"
        if name not in self.names:
            self.names[name] = getattr(Struct(">" + letters), method)
        return name

    def compile(self, title: str, **names: object) -> Callable[..., Any]:
        space: dict[str, Any] = {**names, **self.names}
        exec(compile("\n".join(self.lines) + "\n", f"<{title}>", "exec"), space)
        function: Callable[..., Any] = space["codec"]
        return function


def width_of(letters: str) -> int:
    return Struct(">" + letters).size
