"""Key order: only the first undone message of each key may be delivered.

The undone messages of one key form a chain of offsets. The chain knows nothing of states: its first message stays first
through leases, releases, retry delays and changes of members, until it is done. So order does not depend on which
member holds which message, and there is no assignment of keys to members that would have to move when members change.

A key with one message costs one dictionary entry, each message behind it three more.
"""


class KeyOrder:
    """Chains of offsets by key."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._last)

    def append(self, offset: int, key: int) -> bool:
        """Adds an offset, which must be higher than all before it; returns whether an earlier message blocks it."""
        before = self._last.get(key)
        self._last[key] = offset
        if before is None:
            return False
        self._after[before] = offset
        self._before[offset] = before
        return True

    def is_blocked(self, offset: int) -> bool:
        return offset in self._before

    def remove(self, offset: int, key: int) -> int | None:
        """Removes a done offset from any position of its chain. Returns the offset that is first from now on, if that
        changed."""
        before = self._before.pop(offset, None)
        after = self._after.pop(offset, None)
        if before is not None and after is not None:
            self._after[before] = after
            self._before[after] = before
        elif before is not None:
            del self._after[before]
            self._last[key] = before
        elif after is not None:
            del self._before[after]
            return after
        else:
            del self._last[key]
        return None
