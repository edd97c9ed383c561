"""The writer of an archive: at any time, one process may change it.

A writer starts with a claim: a change that changes nothing. From then on no earlier writer can commit, because its next
number is taken. So the new writer may safely remove the unfinished work of others. The newest writer wins, and there is
no lock that a dead process could leave behind.

A writer that dies leaves this behind, by the time of its death:

    while Spark writes the staging folder     a staging folder
    after that, before or between moves       a staging folder with a plan, some files that the log does not name
    before the log has the change             the same
    after it                                  a staging folder with a plan, files that the change removed

In every case the next writer removes it when it starts. Readers use only the files that the log names, and never see
any of it.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.log import LOG_FOLDER, ArchiveLog
from penstock.spark.pipelines.manifest import DataFile, Kind, Manifest, TopicFacts, ends_of
from penstock.spark.pipelines.problems import AnotherWriter, ArchiveError
from penstock.spark.pipelines.staging import Stage, clear_all

CLAIM_TRIES = 10
"""Each lost to a change of another writer that was at work in the same moment."""


class ArchiveWriter:
    def __init__(self, files: Files, *, compression: str = "zstd") -> None:
        self.files = files
        self.name = uuid4().hex[:12]
        self._compression = compression
        self._log = ArchiveLog(files)
        self.state = self._log.load()

    def claim(self, topics: Mapping[str, TopicFacts], begins: Mapping[str, Mapping[str, int]]) -> None:
        """Makes this the archive's only writer. `begins` says where topics start that do not at their first
        record: what is before is not wanted."""
        self.files.make_folder(LOG_FOLDER)
        for _ in range(CLAIM_TRIES):
            try:
                self._append("claim", topics=dict(topics), through=self._unknown(begins))
            except AnotherWriter:
                self.state = self._log.load()
                continue
            clear_all(self.files, self.state)
            return
        raise AnotherWriter(f"{self.files.root} has another busy writer: stop it first")

    def _unknown(self, begins: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """`begins` without topics that the archive has by now: these continue where they are; `begins` may be older."""
        known = {*self.state.topics, *self.state.through}
        return {topic: dict(numbers) for topic, numbers in begins.items() if topic not in known}

    def check_alone(self) -> None:
        """AnotherWriter if another run has claimed the archive since."""
        now = self._log.load()
        if now.writer != self.name:
            raise self._log.taken_over(f" (writer {now.writer})")

    def add(
        self, spark: SparkSession, rows: DataFrame, *, look: Callable[[], Mapping[str, TopicFacts]] = dict
    ) -> list[DataFile]:
        """Commits rows as new files. They must not be in the archive yet. `look` says which topics are new, or raises;
        it is called when all rows have been read, so that it knows of all that happened before."""
        stage = self._stage(rows)
        found = stage.found(spark)
        try:
            topics = dict(look())
        except Exception:
            stage.clear(self.state)
            raise
        added = [file for _, file in found]
        if added:
            self._commit(stage, found, "batch", through=ends_of(added), topics=topics)
        else:
            stage.clear(self.state)
        return added

    def replace(self, spark: SparkSession, old: list[DataFile], rows: DataFrame) -> list[DataFile]:
        """Commits rows in place of the files that they were read from."""
        stage = self._stage(rows)
        found = stage.found(spark)
        before, after = sum(file.rows for file in old), sum(file.rows for _, file in found)
        if before != after:
            stage.clear(self.state)
            raise ArchiveError(f"a compaction of {before} rows came out with {after}: nothing was changed")
        self._commit(stage, found, "compaction", removed=tuple(file.path for file in old))
        return [file for _, file in found]

    def _stage(self, rows: DataFrame) -> Stage:
        stage = Stage(self.files, self.state.sequence + 1, self.name)
        stage.write(rows, self._compression)
        return stage

    def _commit(
        self,
        stage: Stage,
        found: list[tuple[str, DataFile]],
        kind: Kind,
        *,
        removed: tuple[str, ...] = (),
        through: dict[str, dict[str, int]] | None = None,
        topics: dict[str, TopicFacts] | None = None,
    ) -> None:
        stage.move(found, removed)
        try:
            added = tuple(file for _, file in found)
            self._append(kind, added=added, removed=removed, through=through, topics=topics)
        except AnotherWriter:
            stage.clear(self._log.load())
            raise
        stage.clear(self.state)
        self._log.tidy(self.state)

    def _append(
        self,
        kind: Kind,
        *,
        added: tuple[DataFile, ...] = (),
        removed: tuple[str, ...] = (),
        through: dict[str, dict[str, int]] | None = None,
        topics: dict[str, TopicFacts] | None = None,
    ) -> None:
        change = Manifest(
            sequence=self.state.sequence + 1,
            writer=self.name,
            kind=kind,
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            added=added,
            removed=removed,
            through=through or {},
            topics=topics or {},
        )
        after = self.state.after([change])
        self._log.append(change)
        self.state = after
