"""An archive through a function of the user's into a new topic.

The same as a replay (`replaying.py`): in steps, in order, resumable, exactly once. The function is applied to the
records of each step.
"""

import inspect
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark.pipelines.reading import check_classic
from penstock.spark.pipelines.replaying import (
    FOR_EVER,
    STEP_OFFSETS,
    Function,
    Replayed,
    Rewriting,
    chosen_tables,
    write_again,
)
from penstock.spark.pipelines.running import ALL_NOW, Schedule
from penstock.spark.pipelines.selection import EVERYTHING, Selection
from penstock.spark.read_bounds import parse_topics


def reprocess(
    spark: SparkSession,
    path: str,
    function: Function,
    topics: str | Sequence[str] | None = None,
    *,
    bootstrap_servers: str,
    to_topic: str,
    selection: Selection = EVERYTHING,
    append: bool = False,
    topic_configs: Mapping[str, str] = FOR_EVER,
    options: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
    step_offsets: int = STEP_OFFSETS,
    schedule: Schedule = ALL_NOW,
    catalog: str | None = None,
) -> Replayed:
    """Writes what a function makes of an archive's records (of these topics, or all) to a topic.

    The function gets a DataFrame with the columns of the archive and returns one with `value` and, if it likes, `key`,
    `partition`, `timestamp` and `headers`. It is called for each step, and must not depend on which records come
    together. A function that does not shuffle keeps the order of each partition. It is known by its name: a run that
    was interrupted continues with a function of the same module and name.
    """
    if not callable(function) or not inspect.isroutine(function) or "<" in function.__qualname__:
        raise ConfigError("function", repr(function), "a function with a name, at the top of a module")
    parse_topics("to_topic", to_topic)
    root = check_classic(spark, path)
    tables = chosen_tables(root, topics, catalog)
    return write_again(
        spark,
        Rewriting(
            root=root,
            tables=tables,
            targets=dict.fromkeys(tables, to_topic),
            selection=selection,
            function=function,
        ),
        bootstrap_servers=bootstrap_servers,
        append=append,
        topic_configs=topic_configs,
        options=options or {},
        checkpoint=checkpoint,
        step_offsets=step_offsets,
        schedule=schedule,
    )
