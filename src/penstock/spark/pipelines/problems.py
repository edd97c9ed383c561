"""The errors of pipelines."""

from penstock.errors import PenstockError


class PipelineError(PenstockError):
    """A pipeline that cannot run as it was asked to, or that ended early. Its text says what to do."""


class ArchiveError(PipelineError):
    """An archive whose files are not as its log says, or that cannot be changed."""


class AnotherWriter(ArchiveError):
    """Another run has taken over the archive: this one must not continue."""
