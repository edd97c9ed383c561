"""`penstock queues dead-letters`: list, show and send back."""

from datetime import UTC, datetime

import click

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import Facts, QueuesApi, asks
from penstock.cli.output import counted, note, show, show_facts, show_json, table
from penstock.cli.parameters import Place
from penstock.cli.problem import Problem

PAGE = 1_000


@click.group(
    "dead-letters",
    epilog=examples(
        "penstock queues dead-letters list mail",
        "penstock queues dead-letters show mail mail.dlq:0:17",
        "penstock queues dead-letters send-back mail --all",
    ),
)
def dead_letters() -> None:
    """List, show and send back messages that were rejected, or delivered too often."""


@dead_letters.command(
    "list",
    epilog=examples(
        "penstock queues dead-letters list mail",
        "penstock queues dead-letters list mail --topic mail.dlq --max 1000 --json",
    ),
)
@click.argument("queue")
@click.option("-t", "--topic", metavar="TOPIC", help="Only of this dead-letter topic.")
@click.option("-n", "--max", "most", type=click.IntRange(min=1), default=100, show_default=True)
@json_option
@asks(QueuesApi)
def list_letters(api: QueuesApi, queue: str, topic: str | None, most: int, as_json: bool) -> None:
    """List the dead letters of a queue that were not sent back."""
    found, more = _letters(api, queue, topic, most)
    rows = found if as_json else [_summary(letter) for letter in found]
    columns = ("letter", "reason", "from", "deliveries", "died", "key")
    show_facts(rows, as_json, *columns, nothing="no dead letters")
    if more and not as_json:
        note("there are more; --max shows them")


def _letters(api: QueuesApi, queue: str, topic: str | None, most: int) -> tuple[list[Facts], bool]:
    found: list[Facts] = []
    place: Facts = {} if topic is None else {"topic": topic}
    while True:
        page = api.get(queue, "dead-letters", max_records=min(PAGE, most - len(found)), **place)
        found += page["dead_letters"]
        if page["next"] is None:
            return found, False
        if len(found) >= most:
            return found, True
        place = page["next"]


def _place(letter: Facts) -> str:
    return f"{letter['topic']}:{letter['partition']}:{letter['offset']}"


def _summary(letter: Facts) -> Facts:
    return {
        "letter": _place(letter),
        "from": f"{letter['from_topic']}:{letter['from_partition']}:{letter['from_offset']}",
        "reason": letter["reason"],
        "deliveries": letter["deliveries"],
        "died": _time(letter["died_at_ms"]),
        "key": letter["key"],
    }


REASONS = {
    "delivery_limit": "it was delivered as often as the queue's delivery limit allows",
    "rejected": "a consumer rejected it",
}


def _failure(letter: Facts) -> Facts:
    """Why it failed, as far as that is known."""
    error = ": ".join(text for text in (letter["error_type"], letter["error_text"]) if text)
    known = {
        "why": REASONS.get(letter["reason"], letter["reason"]),
        "error": error or None,
        "worker": letter["worker"],
        "first failure": _time(letter["first_failure_ms"]),
        "last failure": _time(letter["last_failure_ms"]),
    }
    return {what: value for what, value in known.items() if value is not None}


def _time(died_at_ms: int | None) -> str | None:
    if died_at_ms is None:
        return None
    return datetime.fromtimestamp(died_at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


@dead_letters.command(
    "show",
    epilog=examples(
        "penstock queues dead-letters show mail mail.dlq:0:17",
        "penstock queues dead-letters show mail mail.dlq:0:17 --json",
    ),
)
@click.argument("queue")
@click.argument("letter", type=Place(), metavar="TOPIC:PARTITION:OFFSET")
@json_option
@asks(QueuesApi)
def show_letter(api: QueuesApi, queue: str, letter: Facts, as_json: bool) -> None:
    """Show one dead letter: why it failed, its headers, all of its value."""
    found = api.get(queue, "dead-letters", letter["topic"], letter["partition"], letter["offset"])
    if as_json:
        show_json(found)
        return
    headers = {f"header {row['name']}": row["value"] for row in found["headers"]}
    show(table("what", "", rows={**_summary(found), **_failure(found), **headers}.items()), "")
    value = found["value"]
    show(value) if isinstance(value, str) else show_json(value)


@dead_letters.command(
    "send-back",
    epilog=examples(
        "penstock queues dead-letters send-back mail mail.dlq:0:17 mail.dlq:0:18",
        "penstock queues dead-letters send-back mail --all",
    ),
)
@click.argument("queue")
@click.argument("letters", nargs=-1, type=Place(), metavar="TOPIC:PARTITION:OFFSET...")
@click.option("--all", "everything", is_flag=True, help="All that `list` shows.")
@json_option
@asks(QueuesApi)
def send_back(
    api: QueuesApi, queue: str, letters: tuple[Facts, ...], everything: bool, as_json: bool
) -> None:
    """Publish dead letters to the topics that they came from, without the dead-letter headers."""
    if bool(letters) == everything:
        raise click.UsageError("give TOPIC:PARTITION:OFFSET, or --all")
    sent: list[Facts] = []
    refused: list[Facts] = []
    more = True
    while more and not refused:
        request: Facts = {"all": True} if everything else {"letters": list(letters)}
        done = api.post(queue, "dead-letters", "send-back", **request)
        sent += done["sent_back"]
        refused += done["refused"]
        more = everything and done["more"] and bool(done["sent_back"])
    if as_json:
        show_json({"sent_back": sent, "refused": refused})
    else:
        note(f"sent back {counted(len(sent), 'message')}")
    if refused:
        first = refused[0]
        raise Problem(
            f"{counted(len(refused), 'message')} could not be sent back; {_place(first['letter'])}: "
            f"{first['error']['message']}"
        )
