"""Where the files of an archive are: a folder on a disk that all executors see, or a prefix of a bucket on S3.

A file that is written here is durable when `finish` has returned, and on S3 it is not visible before. Only the tables'
commits decide which files count (`topic_table.py`). Executors get a storage by value, with all they need to reach it.
"""

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.spark.lake.s3_settings import S3Settings
from penstock.spark.problems import PipelineError

GLOB_CHARACTERS: Final = frozenset("*?[]{}\\")
"""Spark takes a path with one of these for a pattern."""
SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
BUCKET: Final = re.compile(r"s3a?://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/[A-Za-z0-9!_.'()/=-]*)?")
"""Bucket and prefix. Other characters mean something in URLs, and every library would read them in its own way."""


class LakeStorage(Protocol):
    """Paths are relative to `url`, with forward slashes."""

    @property
    def url(self) -> str: ...

    @property
    def is_local(self) -> bool: ...

    def below(self, name: str) -> "LakeStorage":
        """A folder in this one."""

    def names(self) -> list[str]:
        """The files and folders that are in this one, sorted; none if it is not there."""

    def has(self, folder: str) -> bool: ...

    def size_bytes(self, path: str) -> int | None:
        """None if there is no such file."""

    def make(self) -> None:
        """The folder is there, or PipelineError."""

    def writing(self, path: str) -> Any:
        """A new file, open for writing. It is durable and whole when `finish` has returned."""

    def finish(self, file: Any, path: str) -> int:
        """Returns the size."""

    def reading(self, path: str) -> Any:
        """A file for pyarrow to read."""

    def sync(self, folder: str, is_new: Callable[[str], bool]) -> None:
        """Makes files durable that were not written through `writing`: those in a folder whose name is new."""

    def delta_options(self) -> dict[str, str]:
        """The options that delta-rs needs to reach it."""

    def iceberg_options(self) -> dict[str, str]:
        """The options that pyiceberg needs to reach it."""


def storage_at(path: str) -> LakeStorage:
    """ConfigError for a path that is none."""
    if not re.match(r"s3a?:", path):
        return LocalStorage(local_folder(path))
    found = BUCKET.fullmatch(path.rstrip("/"))
    key = (found[2] or "").strip("/") if found else ""
    if found is None or (key and not all(part.strip(".") for part in key.split("/"))):
        raise ConfigError(
            "path", path, "s3://BUCKET/PATH, of letters, digits and any of ! _ . ' ( ) = - in the path"
        )
    return S3Storage("/".join(filter(None, [found[1], key])), S3Settings.from_environment(os.environ))


def local_folder(path: str) -> str:
    """The absolute path of a folder that all processes see. ConfigError for one that is none."""
    plain = re.sub(r"^file:(//)?(?=/)", "", path)
    if not plain or GLOB_CHARACTERS & set(plain):
        raise ConfigError("path", path, "a folder's path without any of * ? [ ] { } \\")
    if SCHEME.match(plain):
        raise ConfigError(
            "path",
            path,
            "a folder on a disk that the driver and all executors see, such as /data/lake, or s3://BUCKET/PATH",
        )
    return os.path.abspath(plain)


@dataclass(frozen=True, slots=True)
class LocalStorage:
    url: str

    @property
    def is_local(self) -> bool:
        return True

    def below(self, name: str) -> "LocalStorage":
        return LocalStorage(os.path.join(self.url, name))

    def names(self) -> list[str]:
        return sorted(os.listdir(self.url)) if os.path.isdir(self.url) else []

    def has(self, folder: str) -> bool:
        return os.path.isdir(self._full(folder))

    def size_bytes(self, path: str) -> int | None:
        try:
            found = os.stat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def make(self) -> None:
        try:
            os.makedirs(self.url, exist_ok=True)
        except OSError as problem:
            raise PipelineError(f"{self.url} cannot be made: {problem.strerror}") from None

    def writing(self, path: str) -> IO[bytes]:
        os.makedirs(os.path.dirname(self._full(path)), exist_ok=True)
        return open(self._full(path), "xb")

    def finish(self, file: IO[bytes], path: str) -> int:
        """After a power cut a commit must not name less than was written."""
        file.flush()
        os.fsync(file.fileno())
        size_bytes = file.tell()
        file.close()
        sync(os.path.dirname(self._full(path)))
        return size_bytes

    def reading(self, path: str) -> str:
        return self._full(path)

    def sync(self, folder: str, is_new: Callable[[str], bool]) -> None:
        full = self._full(folder)
        for name in filter(is_new, os.listdir(full)):
            sync(os.path.join(full, name))
        sync(full)

    def delta_options(self) -> dict[str, str]:
        return {}

    def iceberg_options(self) -> dict[str, str]:
        return {}

    def _full(self, path: str) -> str:
        return os.path.join(self.url, path)


@dataclass(frozen=True, slots=True)
class S3Storage:
    prefix: str
    """Bucket and key, as pyarrow names objects."""
    settings: S3Settings

    @property
    def url(self) -> str:
        return f"s3://{self.prefix}"

    @property
    def is_local(self) -> bool:
        return False

    def below(self, name: str) -> "S3Storage":
        return S3Storage(self._full(name), self.settings)

    def names(self) -> list[str]:
        from pyarrow.fs import FileSelector

        found = self._info(FileSelector(self.prefix, allow_not_found=True))
        return sorted(each.base_name for each in found)

    def has(self, folder: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self._info(self._full(folder)).type == FileType.Directory)

    def size_bytes(self, path: str) -> int | None:
        size: int | None = self._info(self._full(path)).size
        return size

    def make(self) -> None:
        """A bucket has no folders, but must be there."""
        from pyarrow.fs import FileType

        bucket = self.prefix.partition("/")[0]
        if self._info(bucket).type == FileType.NotFound:
            raise PipelineError(f"there is no bucket {bucket}, or these credentials may not see it")

    def writing(self, path: str) -> pa.NativeFile:
        return self.settings.file_system().open_output_stream(self._full(path))

    def finish(self, file: pa.NativeFile, path: str) -> int:
        size_bytes: int = file.tell()
        file.close()
        return size_bytes

    def reading(self, path: str) -> pa.NativeFile:
        return self.settings.file_system().open_input_file(self._full(path))

    def sync(self, folder: str, is_new: Callable[[str], bool]) -> None:
        """An object is durable when its put is answered."""

    def delta_options(self) -> dict[str, str]:
        return self.settings.delta_options()

    def iceberg_options(self) -> dict[str, str]:
        return self.settings.iceberg_options()

    def _full(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def _info(self, wanted: Any) -> Any:
        try:
            return self.settings.file_system().get_file_info(wanted)
        except OSError as problem:
            raise PipelineError(f"{self.url} cannot be reached: {problem}") from None


def sync(path: str) -> None:
    """A file or a folder onto the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
