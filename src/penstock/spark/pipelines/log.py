"""The archive's log on a file system: reads it, and commits changes by appending to it.

Readers take the newest snapshot and the changes after it. There are no locks: a change is appended by creating the
file with the next number, which fails if it exists. So of two writers one learns that it is not the only one.
"""

from typing import Final

import msgspec

from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.manifest import Manifest, State, decode
from penstock.spark.pipelines.problems import AnotherWriter, ArchiveError

OWN_FOLDER: Final = "_penstock"
"""Spark's readers skip folders that start with an underscore."""
LOG_FOLDER: Final = f"{OWN_FOLDER}/log"

CHANGE: Final = ".json"
SNAPSHOT: Final = ".snapshot.json"

SNAPSHOT_EVERY: Final = 50
"""Changes that a reader has to read at most, about 2 ms each on a local disk."""
KEPT_CHANGES: Final = 100
"""Changes that are kept before the newest snapshot, for readers that have just listed the folder, and for debugging."""

LISTING_TRIES: Final = 5


class ArchiveLog:
    def __init__(self, files: Files) -> None:
        self._files = files

    def load(self) -> State:
        """The archive as it is now; empty if there is none."""
        for _ in range(LISTING_TRIES):
            state = self._load_once()
            if state is not None:
                return state
        raise ArchiveError(f"the log of {self._files.root} changes too quickly to be read: try again")

    def append(self, change: Manifest) -> None:
        """Commits the change, or raises AnotherWriter and nothing has happened."""
        if self._files.create(_name(change.sequence, CHANGE), msgspec.json.encode(change)):
            self._check_in_time(change)
            return
        there = self._files.read(_name(change.sequence, CHANGE))
        who = "" if there is None else _who(decode(there, Manifest, f"change {change.sequence}"))
        raise self.taken_over(who)

    def _check_in_time(self, change: Manifest) -> None:
        """A writer that was paused may find its number free because `tidy` has removed the change with that number.
        Then there is a snapshot at or after the number, so no reader reads the change that was just created. A snapshot
        that followed a change in time looks the same: the change is deleted, the snapshot still contains it, and
        AnotherWriter is raised although the change counts. That is safe, because all code that removes files asks the
        log which files it names. Without such a snapshot, later changes were made on top of this one, and it stays."""
        _, snapshots = self._numbers()
        if snapshots and snapshots[-1] >= change.sequence:
            self._files.delete(_name(change.sequence, CHANGE))
            raise self.taken_over(f" (writer {self.load().writer})")

    def taken_over(self, who: str) -> AnotherWriter:
        return AnotherWriter(
            f"another writer has taken over {self._files.root}{who}. An archive has one writer at a time: stop the "
            "other, or leave it to it. Nothing of this run's last change was kept, and nothing is lost"
        )

    def tidy(self, state: State) -> None:
        """Writes a snapshot every so often, and deletes changes that are no longer needed."""
        if state.sequence % SNAPSHOT_EVERY:
            return
        self._files.create(_name(state.sequence, SNAPSHOT), msgspec.json.encode(state))
        changes, snapshots = self._numbers()
        for number in changes:
            if number <= state.sequence - KEPT_CHANGES:
                self._files.delete(_name(number, CHANGE))
        for number in snapshots:
            if number <= state.sequence - KEPT_CHANGES:
                self._files.delete(_name(number, SNAPSHOT))

    def _load_once(self) -> State | None:
        """None: a file that was just listed is gone. Another run has deleted it, and there is a newer snapshot."""
        changes, snapshots = self._numbers()
        state = State()
        if snapshots:
            content = self._files.read(_name(snapshots[-1], SNAPSHOT))
            if content is None:
                return None
            state = decode(content, State, f"snapshot {snapshots[-1]}")
        found = []
        for number in changes:
            if number > state.sequence:
                content = self._files.read(_name(number, CHANGE))
                if content is None:
                    return None
                found.append(decode(content, Manifest, f"change {number}"))
        return state.after(found)

    def _numbers(self) -> tuple[list[int], list[int]]:
        names = [each.name for each in self._files.names(LOG_FOLDER) if not each.name.startswith(".")]
        snapshots = [name.removesuffix(SNAPSHOT) for name in names if name.endswith(SNAPSHOT)]
        changes = [name.removesuffix(CHANGE) for name in names if name.endswith(CHANGE)]
        return _whole(changes), _whole(snapshots)


def _whole(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdecimal())


def _name(sequence: int, suffix: str) -> str:
    return f"{LOG_FOLDER}/{sequence:020d}{suffix}"


def _who(change: Manifest) -> str:
    return f" (writer {change.writer}, at {change.at})"
