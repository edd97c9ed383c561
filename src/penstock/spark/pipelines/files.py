"""Files wherever Spark keeps them: Hadoop's file systems through the driver's JVM, so hdfs, s3a and plain files alike.

Paths are relative to one root, with forward slashes. `create` is the one operation that decides anything: it makes a
whole file or none, and says whether the file existed before. Everything else may be done twice.
"""

import os
from typing import Any, Final, NamedTuple
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark.pipelines.problems import ArchiveError, PipelineError

GLOB_CHARACTERS: Final = frozenset("*?[]{}\\")
"""Spark takes a path with one of these for a pattern."""


class Listed(NamedTuple):
    name: str
    is_folder: bool


class Files:
    """A folder and what is below it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._gateway = _gateway_of(spark)
        if not root or GLOB_CHARACTERS & set(root):
            raise ConfigError("path", root, "a folder's path without any of * ? [ ] { } \\")
        self._hadoop: Any = self._gateway.jvm.org.apache.hadoop.fs
        self._conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
        path = self._hadoop.Path(root)
        try:
            self._fs: Any = path.getFileSystem(self._conf)
        except Py4JJavaError as problem:
            raise ConfigError("path", root, f"a folder that Spark can reach ({_said(problem)})") from None
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

    def write(self, path: str, content: bytes) -> None:
        """A file that only its writer cares for; what was there is replaced."""
        stream = self._fs.create(self._path(path), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def create(self, path: str, content: bytes) -> bool:
        """The whole file or none. False: it exists, and stays as it is."""
        folder, _, name = path.rpartition("/")
        draft = f"{folder}/.{name}.{uuid4().hex}"  # with the dot, readers skip it
        self.write(draft, content)
        try:
            self._sync(draft)
            placed = self._place(draft, path)
            self._sync(folder)
            return placed
        finally:
            self.delete(draft)

    def move(self, source: str, target: str) -> None:
        """Moves a file to a name that is not in use. Its folder must exist (`make_folder`)."""
        self._sync(source)
        if not self._fs.rename(self._path(source), self._path(target)):
            raise ArchiveError(f"{self.absolute(source)} cannot be moved to {self.absolute(target)}")

    def make_folder(self, path: str) -> None:
        try:
            made = self._fs.mkdirs(self._path(path))
        except Py4JJavaError as problem:
            raise PipelineError(f"{self.absolute(path)} cannot be made: {_said(problem)}") from None
        if not made:
            raise PipelineError(
                f"{self.absolute(path)} cannot be made: is its folder there, and may you write?"
            )

    def delete(self, path: str) -> None:
        """Deletes files, and folders with their content. Missing ones are ignored."""
        self._fs.delete(self._path(path), True)

    def _sync(self, path: str) -> None:
        """Onto the disk, before a name that counts leads there: after a power cut the log must not name what is not
        whole. For local files; HDFS and object stores have their copies when a file is closed."""
        local = _local(self.absolute(path))
        if local is not None:
            handle = os.open(local, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _place(self, draft: str, path: str) -> bool:
        here, there = _local(self.absolute(draft)), _local(self.absolute(path))
        if here is not None and there is not None:
            # A hard link appears at once, whole, and never over another file: Java's rename would replace it.
            try:
                os.link(here, there)
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links
                return self._rename_new(draft, path)
            return True
        return self._rename_new(draft, path)

    def _rename_new(self, draft: str, path: str) -> bool:
        """FileContext's rename, unlike FileSystem's, does not replace what is there; HDFS does that atomically."""
        context = self._hadoop.FileContext.getFileContext(self._fs.getUri(), self._conf)
        no_options = self._gateway.new_array(getattr(self._hadoop, "Options$Rename"), 0)
        try:
            context.rename(self._path(draft), self._path(path), no_options)
        except Py4JJavaError as problem:
            if _is(problem, "org.apache.hadoop.fs.FileAlreadyExistsException"):
                return False
            raise
        return True

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(self.absolute(path))


def _gateway_of(spark: SparkSession) -> Any:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise PipelineError(
            "an archive needs a classic Spark session, since its files are moved through the driver's JVM, and this "
            "is a Spark Connect session. Start one with SparkSession.builder.master(...), spark-submit, or "
            "`penstock pipeline run --master ...`"
        )
    return spark.sparkContext._gateway


def _local(uri: str) -> str | None:
    """The path of a file that this machine has."""
    return uri.removeprefix("file:") if uri.startswith("file:") else None


def _said(problem: Py4JJavaError) -> str:
    """The message of the innermost Java exception: the outer ones often only name it."""
    found = problem.java_exception
    while found.getCause() is not None:
        found = found.getCause()
    return str(found.getMessage() or found.getClass().getName()).splitlines()[0]


def _is(problem: Py4JJavaError, java_class: str) -> bool:
    return str(problem.java_exception.getClass().getName()) == java_class
