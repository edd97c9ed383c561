"""The catalog of Iceberg tables: it knows the newest metadata of each, and changes it for one writer at a time.

By default a file of SQLite in the archive's folder. A REST catalog, or a SQLite file elsewhere, is named by its URI.
Further settings of a catalog (warehouse, token, ...) are pyiceberg's own, of a catalog named `penstock`:
PYICEBERG_CATALOG__PENSTOCK__TOKEN, or the file ~/.pyiceberg.yaml.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigError
from penstock.spark.lake.storage import LakeStorage
from penstock.spark.problems import PipelineError, first_line

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from penstock.spark.lake.iceberg_table import IcebergFormat

CATALOG_FILE: Final = "iceberg-catalog.db"
SQLITE: Final = "sqlite:///"
REST: Final = ("http://", "https://")
LOCK_TIMEOUT_S: Final = 60
"""How long a commit waits for another process that writes to the SQLite file. That takes milliseconds."""


def has_own_catalog(storage: LakeStorage) -> bool:
    return storage.is_local and storage.size_bytes(CATALOG_FILE) is not None


def iceberg_format(storage: LakeStorage, uri: str | None) -> "IcebergFormat":
    """The tables of an archive in a catalog; None: the one in the archive's folder."""
    if uri is None and not storage.is_local:
        raise ConfigError(
            "catalog", uri, f"a catalog for Iceberg tables in a bucket: https://HOST/..., or {SQLITE}/PATH"
        )
    if uri is not None and not uri.startswith((SQLITE, *REST)):
        raise ConfigError("catalog", uri, f"https://HOST/..., http://HOST/..., or {SQLITE}/PATH")
    if "#" in storage.url:
        raise ConfigError(
            "path", storage.url, "a path without # for Iceberg tables, whose locations are URLs"
        )
    if uri is None:
        storage.make()
        uri = f"{SQLITE}{storage.url}/{CATALOG_FILE}"
    try:
        from penstock.spark.lake.iceberg_table import UNREACHABLE, IcebergFormat
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] not in ("pyiceberg", "sqlalchemy"):
            raise
        raise PipelineError(
            'Iceberg tables need pyiceberg, which is not installed: pip install "penstock[lake]"'
        ) from None
    try:
        return IcebergFormat(_catalog(uri, storage.iceberg_options()))
    except UNREACHABLE as problem:
        raise PipelineError(f"the catalog {uri} cannot be reached: {first_line(problem)}") from None


def _catalog(uri: str, options: Mapping[str, str]) -> "Catalog":
    from pyiceberg.catalog import load_catalog

    if uri.startswith(REST):
        return load_catalog("penstock", type="rest", uri=uri, **options)
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import NullPool, create_engine

    os.makedirs(os.path.dirname(uri.removeprefix(SQLITE)) or ".", exist_ok=True)
    found = SqlCatalog("penstock", uri=uri, **options)
    found.engine.dispose()
    # Without a pool: a connection that is kept would go on with a file that has been deleted.
    found.engine = create_engine(uri, poolclass=NullPool, connect_args={"timeout": LOCK_TIMEOUT_S})
    return found
