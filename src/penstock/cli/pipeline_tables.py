"""`penstock pipeline optimize | vacuum | convert`: the care of an archive's tables, without Spark and Java."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.output import show, show_json
from penstock.cli.problem import Misconfigured, Problem
from penstock.errors import ConfigError, PenstockError

MEGABYTE = 1 << 20
DEPENDENCIES = ("deltalake", "pyarrow", "numpy", "pyiceberg", "sqlalchemy")

catalog_option = click.option(
    "--catalog",
    metavar="URI",
    help="The catalog of Iceberg tables: https://..., sqlite:////PATH.  [default: a file in the archive]",
)


@contextmanager
def _explained() -> Iterator[None]:
    """Errors become a Problem; a library that is not installed too."""
    try:
        yield
    except ConfigError as problem:
        raise Misconfigured(str(problem)) from None
    except PenstockError as problem:
        raise Problem(str(problem)) from None
    except ModuleNotFoundError as problem:
        if problem.name not in DEPENDENCIES:
            raise
        raise Problem(f"{problem.name} is not installed", 'pip install "penstock[lake]"') from None


@click.command(
    epilog=examples("penstock pipeline optimize ./lake", "penstock pipeline optimize ./lake --target-mb 512")
)
@click.argument("path")
@click.option(
    "--target-mb",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="The size that files are merged up to.",
)
@catalog_option
@json_option
def optimize(path: str, target_mb: int, catalog: str | None, as_json: bool) -> None:
    """Merge the small files of an archive's Delta tables. A run may be writing to them meanwhile."""
    with _explained():
        from penstock.spark.lake.maintenance import Compaction, optimize_archive

        fewer = optimize_archive(path, Compaction(target_bytes=target_mb * MEGABYTE), catalog=catalog)
    if as_json:
        show_json({"files_merged_away": fewer})
    else:
        show(f"merging reduced the number of files by {fewer:,}")


@click.command(
    epilog=examples(
        "penstock pipeline vacuum ./lake --dry-run", "penstock pipeline vacuum ./lake --retain-hours 24"
    )
)
@click.argument("path")
@click.option(
    "--retain-hours",
    type=int,
    default=168,
    show_default=True,
    help="Keep younger files: queries and running archives may need them.",
)
@click.option("--dry-run", is_flag=True, help="Only list the files.")
@catalog_option
@json_option
def vacuum(path: str, retain_hours: int, dry_run: bool, catalog: str | None, as_json: bool) -> None:
    """Delete files that an archive's tables no longer have: merged ones, and leftovers of runs that were killed.

    With Iceberg tables it forgets old snapshots, and deletes no files.
    """
    with _explained():
        from penstock.spark.lake.maintenance import vacuum_archive

        deleted = vacuum_archive(path, retention_hours=retain_hours, dry_run=dry_run, catalog=catalog)
    files = [f"{topic}/{name}" for topic, names in sorted(deleted.items()) for name in names]
    if as_json:
        show_json({"deleted": files, "dry_run": dry_run})
        return
    for name in files if dry_run else ():
        show(name)
    snapshots = sum("/snapshot " in name for name in files)
    found = [f"{len(files) - snapshots:,} files"] + ([f"{snapshots:,} snapshots"] if snapshots else [])
    show(f"{' and '.join(found)} {'would be' if dry_run else 'were'} deleted")


@click.command(epilog=examples("penstock pipeline convert ./archive"))
@click.argument("path")
@json_option
def convert(path: str, as_json: bool) -> None:
    """Convert an archive of the format before Delta tables, in place. Stop the run that writes to it first."""
    with _explained():
        from penstock.spark.lake.conversion import convert_archive

        done = convert_archive(path)
    if as_json:
        show_json({"topics": list(done.topics), "rows": done.rows})
    else:
        show(f"converted {done.rows:,} records of {len(done.topics):,} topics to Delta tables")
