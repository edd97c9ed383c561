"""The unit of work of an executor. Separate from task.py, so that planning does not load the imports of reading."""

from pyspark.sql.datasource import InputPartition

from penstock.types import TopicPartition


class ReadTask(InputPartition):
    """A range of one partition. Pickled to an executor."""

    def __init__(self, tp: TopicPartition, start: int, end: int) -> None:
        super().__init__((tuple(tp), start, end))
        self.topic_partition = tp
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"ReadTask({self.topic_partition}: {self.start} to {self.end})"
