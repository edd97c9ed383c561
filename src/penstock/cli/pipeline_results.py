"""Rows of a query as commands print them."""

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTS = """
    SELECT topic, partition, source, count(*) AS records, min(offset) AS first, max(offset) AS last
    FROM history GROUP BY topic, partition, source ORDER BY topic, partition, first
"""


def rows_of(answer: "DataFrame", limit: int) -> tuple[list[str], list[list[Any]], bool]:
    """Column names, at most `limit` rows, and whether there are more."""
    rows = [[plain(cell) for cell in row] for row in answer.limit(limit + 1).collect()]
    return list(answer.columns), rows[:limit], len(rows) > limit


def plain(cell: Any) -> Any:
    """What both a table and JSON can show. Bytes are taken for UTF-8, since most are."""
    if isinstance(cell, bytes | bytearray):
        return bytes(cell).decode("utf-8", "replace")
    if isinstance(cell, datetime | date):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return str(cell)
    if isinstance(cell, list):
        return [plain(each) for each in cell]
    if hasattr(cell, "asDict"):
        return {name: plain(value) for name, value in cell.asDict().items()}
    return cell
