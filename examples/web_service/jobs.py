"""The jobs of the shop: each order is charged by a worker, and a report is written every hour.

    penstock worker jobs:client --processes 2

A worker may die after it has charged an order and before its ack is stored. The order then comes again, so `charge`
does its work under the order's id: the second time finds it done.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.client import Client, Job, Reject

SERVERS = os.environ.get("PENSTOCK_BOOTSTRAP", "127.0.0.1:9092")
DATABASE = Path(os.environ.get("SHOP_DATABASE", "shop.sqlite"))
TOPIC = "orders"
QUEUE = "charges"
DAY_SECONDS = 86_400

client = Client(SERVERS)


def declare() -> None:
    """Creates the queue and its topic, which keeps every order until it is charged. Every program may call it."""
    client.admin.create_queue(
        QUEUE, topic=TOPIC, max_deliveries=20, dedup=DAY_SECONDS, backoff=1, max_backoff=60
    )
    with database() as rows:
        rows.execute("CREATE TABLE IF NOT EXISTS charged (id TEXT PRIMARY KEY, cents INTEGER, times INTEGER)")


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(DATABASE, timeout=30)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


@client.worker(QUEUE, topic=TOPIC, concurrency=4, timeout=60)
def charge(job: Job) -> None:
    order = job.json()
    if order["cents"] <= 0:
        raise Reject(f"order {order['id']} costs {order['cents']} cents: expected more than 0")
    with database() as rows:
        rows.execute(
            "INSERT INTO charged VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET times = times + 1",
            (order["id"], order["cents"]),
        )


@client.every("1h")
def report(job: Job) -> None:
    with database() as rows:
        [(count, cents)] = rows.execute("SELECT count(*), coalesce(sum(cents), 0) FROM charged")
    print(f"{count} orders, {cents / 100:.2f} in all")
