"""Writes the tables of docs/configuration.md from the definitions, so that the page cannot drift from the code.

python tools/write_config_docs.py            rewrites the tables
python tools/write_config_docs.py --check    only says whether they are up to date
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from penstock.config import (
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    ClusterSettings,
    GroupSettings,
    LakeSettings,
    Limits,
    SchemaRegistrySettings,
    ShareGroupSettings,
    TransactionSettings,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
NO_LIMIT = 2**63 - 1


def group_rows() -> Iterator[str]:
    yield "| setting | default | what it does |"
    yield "|---|---:|---|"
    defaults, docs = GroupSettings(), field_docs(GroupSettings)
    for field in msgspec.structs.fields(GroupSettings):
        value = getattr(defaults, field.name)
        shown = value if isinstance(value, str) else f"{value:,}"
        yield f"| `{field.name}` | {shown} | {docs[field.name]} |"


def replication_rows() -> Iterator[str]:
    yield "| setting | default | what it does |"
    yield "|---|---:|---|"
    defaults, docs = ClusterSettings(), field_docs(ClusterSettings)
    for field in msgspec.structs.fields(ClusterSettings):
        value = getattr(defaults, field.name)
        shown = str(value).lower() if isinstance(value, bool) else f"{value:,}"
        yield f"| `{field.name}` | {shown} | {docs[field.name]} |"


def limit_rows() -> Iterator[str]:
    yield "| limit | default | what and why |"
    yield "|---|---:|---|"
    defaults, docs = Limits(), field_docs(Limits)
    for field in msgspec.structs.fields(Limits):
        yield f"| `{field.name}` | {getattr(defaults, field.name):,} | {docs[field.name]} |"


def topic_rows() -> Iterator[str]:
    yield "| topic config | default | what it does |"
    yield "|---|---|---|"
    for definition in TOPIC_CONFIGS.values():
        if not definition.hidden and not definition.refused:
            yield f"| `{definition.name}` | {_shown(definition.default)} | {definition.doc} |"


def refused_rows() -> Iterator[str]:
    yield "| topic config | accepted value | why no other |"
    yield "|---|---|---|"
    for definition in TOPIC_CONFIGS.values():
        if not definition.hidden and definition.refused:
            yield f"| `{definition.name}` | {_shown(definition.default)} | {definition.refused}. |"


def queue_rows() -> Iterator[str]:
    yield "| group config | default | accepted | what it does |"
    yield "|---|---|---|---|"
    for definition in GROUP_CONFIGS.values():
        shown, accepted = _shown(definition.default), definition.kind.expected
        yield f"| `{definition.name}` | {shown} | {accepted} | {definition.doc} |"


def share_group_rows() -> Iterator[str]:
    yield "| setting | default | what it does |"
    yield "|---|---:|---|"
    defaults, docs = ShareGroupSettings(), field_docs(ShareGroupSettings)
    for field in msgspec.structs.fields(ShareGroupSettings):
        yield f"| `{field.name}` | {getattr(defaults, field.name):,} | {docs[field.name]} |"


def transaction_rows() -> Iterator[str]:
    yield "| setting | default | what it does |"
    yield "|---|---:|---|"
    defaults, docs = TransactionSettings(), field_docs(TransactionSettings)
    for field in msgspec.structs.fields(TransactionSettings):
        yield f"| `{field.name}` | {getattr(defaults, field.name):,} | {docs[field.name]} |"


def lake_rows() -> Iterator[str]:
    yield "| setting | default | what it does |"
    yield "|---|---:|---|"
    defaults, docs = LakeSettings(), field_docs(LakeSettings)
    for field in msgspec.structs.fields(LakeSettings):
        value = getattr(defaults, field.name)
        yield f"| `{field.name}` | {f'{value:,}' if isinstance(value, int) else _shown(value)} | {docs[field.name]} |"


def schema_registry_rows() -> Iterator[str]:
    yield "| setting | default | what it does |"
    yield "|---|---|---|"
    defaults, docs = SchemaRegistrySettings(), field_docs(SchemaRegistrySettings)
    for field in msgspec.structs.fields(SchemaRegistrySettings):
        yield f"| `{field.name}` | {_shown(getattr(defaults, field.name))} | {docs[field.name]} |"


def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The text below each field of a struct, on one line. A field without one has no entry."""
    body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, text in pairwise(body.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as doc)),
            ):
                docs[name] = " ".join(doc.split())
    return docs


def _shown(default: str) -> str:
    return {"": "empty", str(NO_LIMIT): "no limit"}.get(default, default)


TABLES = {
    "groups": group_rows,
    "replication": replication_rows,
    "limits": limit_rows,
    "topics": topic_rows,
    "refused": refused_rows,
    "queues": queue_rows,
    "share_groups": share_group_rows,
    "transactions": transaction_rows,
    "lake": lake_rows,
    "schema_registry": schema_registry_rows,
}


def with_tables(page: str) -> str:
    """The page, with new text between each `<!-- NAME -->` and `<!-- /NAME -->`."""
    for name, rows in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = page.split(start)
        after = rest.split(end)[1]
        page = "\n".join([f"{before}{start}", *rows(), f"{end}{after}"])
    return page


def main() -> None:
    before = PAGE.read_text()
    after = with_tables(before)
    if "--check" in sys.argv:
        sys.exit(
            0 if before == after else "docs/configuration.md is out of date: run tools/write_config_docs.py"
        )
    PAGE.write_text(after)


if __name__ == "__main__":
    main()
