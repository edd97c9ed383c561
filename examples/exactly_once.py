"""Jobs and their results in transactions: each result is stored exactly once, although a worker crashes.

The first worker is a separate process that dies when it has published a result and acked its job, but not committed.
"""

import os
import subprocess
import sys

from example_broker import broker_or_start, fresh

from penstock.client import Client

JOBS = 10
CRASHES_AT = 4


def main() -> None:
    with broker_or_start(__doc__) as servers, Client(servers) as client:
        orders, invoices = fresh("orders"), fresh("invoices")
        client.admin.create_topic(invoices)
        client.admin.create_queue(orders)
        for number in range(1, JOBS + 1):
            client.publish_soon(orders, f"order {number}")
        client.flush()
        print(f"{JOBS} jobs wait")

        dead = subprocess.run([sys.executable, __file__, "--crash", servers, orders, invoices], check=False)
        print(f"the first worker died with status {dead.returncode}; a second one takes over")

        # The same transactional id: the broker aborts what the first worker has left open, and fences it.
        work(client, orders, invoices, JOBS - CRASHES_AT + 1)
        with client.subscribe(
            invoices, name=fresh("audit"), read_old=True, isolation="read_committed", idle_s=5
        ) as subscription:
            found = [message.text() for message in subscription]
        print(f"{len(found)} invoices, {len(set(found))} different ones")


def work(client: Client, orders: str, invoices: str, jobs: int, *, crashes_at: int = 0) -> None:
    with client.queue(orders, prefetch=1) as queue:
        for number in range(1, jobs + 1):
            job = queue.receive()
            assert job is not None
            with client.transaction("invoicing-1") as transaction:
                transaction.publish(invoices, f"invoice for {job.text()}")
                acked = transaction.ack(job)
                if number == crashes_at:
                    acked.wait()
                    print(f"  {job.text()}: acked and not committed ... (crash)", flush=True)
                    os._exit(1)
            print(f"  {job.text()}: done, at delivery {job.deliveries}", flush=True)


def crash(servers: str, orders: str, invoices: str) -> None:
    with Client(servers) as client:
        work(client, orders, invoices, JOBS, crashes_at=CRASHES_AT)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--crash"]:
        crash(*sys.argv[2:])
    else:
        main()
