"""The errors of pipelines and of the tables that they write."""

from penstock.errors import PenstockError


class PipelineError(PenstockError):
    """A pipeline that cannot run as it was asked to, or that ended early. Its text says what to do."""


class ArchiveError(PipelineError):
    """An archive that is not as it should be, or that cannot be changed."""


class AnotherWriter(ArchiveError):
    """Another run has written to the archive meanwhile: this one must not continue."""


def first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]
