"""Flushing one log: `Flushes` issues a ticket for what is dirty and enters the ticket's result."""

from penstock.errors import StorageError
from penstock.log.flush_state import FlushTicket
from penstock.log.log_files import LogFiles
from penstock.log.maintenance import Maintenance


class Flushes:
    """Begins and finishes the flushes of one log."""

    __slots__ = ("_files", "_maintenance")

    def __init__(self, files: LogFiles, maintenance: Maintenance) -> None:
        self._files = files
        self._maintenance = maintenance

    @property
    def is_needed(self) -> bool:
        """Whether there is something to flush."""
        return self._files.flushed.is_dirty

    def begin(self) -> FlushTicket | None:
        """A ticket for all that is not flushed yet, or None. The caller runs it in a thread, then calls `finish`.
        StorageError if a file was closed and could not be flushed before: that is final, too."""
        files = self._files
        if files.failed is not None or not files.flushed.is_dirty:
            return None
        try:
            ticket = files.flushed.issue(
                files.disk, files.end_point(), files.state.end_index, files.appended_bytes
            )
        except StorageError as problem:
            files.failed = problem
            raise
        if self._maintenance.is_capture_due():
            ticket.capture = self._maintenance.capture()
        return ticket

    def finish(self, ticket: FlushTicket, error: StorageError | None = None) -> None:
        """The ticket is back. An error is final: unflushed bytes may be lost, and a second flush would not show it."""
        files = self._files
        if not files.flushed.finish(ticket, succeeded=error is None):
            return
        if error is not None and files.failed is None:
            files.failed = error
        if files.failed is not None or files.disk.volatile:
            return
        self._maintenance.hold(ticket.capture)
        self._maintenance.flushed(ticket.appended_bytes)

    def abort(self, error: StorageError) -> None:
        """The caller could not begin or finish a flush, because of a bug. It is unknown what is flushed, as after a
        flush that failed: the log takes no more writes, and begins no other flush."""
        if self._files.failed is None:
            self._files.failed = error
