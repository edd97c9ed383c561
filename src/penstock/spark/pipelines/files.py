"""The files of a checkpoint wherever Spark keeps it: Hadoop's file systems through the driver's JVM, so hdfs, s3a and
plain files alike. Paths are relative to one root, with forward slashes."""

from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark.lake.storage import GLOB_CHARACTERS


class Listed(NamedTuple):
    name: str
    is_folder: bool


class Files:
    """A folder and what is below it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._gateway = gateway
        if not root or GLOB_CHARACTERS & set(root):
            raise ConfigError("checkpoint", root, "a folder's path without any of * ? [ ] { } \\")
        self._hadoop: Any = self._gateway.jvm.org.apache.hadoop.fs
        self._conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
        path = self._hadoop.Path(root)
        try:
            self._fs: Any = path.getFileSystem(self._conf)
        except Py4JJavaError as problem:
            raise ConfigError(
                "checkpoint", root, f"a folder that Spark can reach ({_said(problem)})"
            ) from None
        self.root = str(self._fs.makeQualified(path).toString()).rstrip("/")
        """With scheme: `file:/data/archive`, `hdfs://host/archive`, `s3a://bucket/archive`."""

    def absolute(self, path: str) -> str:
        return f"{self.root}/{path}"

    def names(self, folder: str) -> list[Listed]:
        """The contents of a folder, sorted; nothing if there is no such folder."""
        if not self.exists(folder):
            return []
        found = self._fs.listStatus(self._path(folder))
        return sorted(Listed(each.getPath().getName(), each.isDirectory()) for each in found)

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def read(self, path: str) -> bytes | None:
        """A small file's content; None if it is not there."""
        try:
            stream = self._fs.open(self._path(path))
        except Py4JJavaError as problem:
            if _is(problem, "java.io.FileNotFoundException"):
                return None
            raise
        try:
            return bytes(self._gateway.jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(self.absolute(path))


def _said(problem: Py4JJavaError) -> str:
    """The message of the innermost Java exception: the outer ones often only name it."""
    found = problem.java_exception
    while found.getCause() is not None:
        found = found.getCause()
    return str(found.getMessage() or found.getClass().getName()).splitlines()[0]


def _is(problem: Py4JJavaError, java_class: str) -> bool:
    return str(problem.java_exception.getClass().getName()) == java_class
