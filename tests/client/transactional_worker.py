"""A process that works on a queue in transactions: each job's value goes to the results, and the job is acked with it.

    python -m tests.client.transactional_worker SERVERS TOPIC QUEUE RESULTS TRANSACTIONAL_ID

It prints a line for each job that it has committed, and starts over after a failure, as a supervisor would start it.
"""

import sys

from penstock.client import Client, ClientError


def main(servers: str, topic: str, queue: str, results: str, transactional_id: str) -> None:
    with Client(servers, reconnect_timeout_s=None) as client:
        for job in client.queue(queue, topic=topic, prefetch=5):
            try:
                with client.transaction(transactional_id, timeout=20) as transaction:
                    transaction.publish(results, job.text())
                    transaction.ack(job)
            except ClientError as failed:
                say(f"failed: {failed}")
            else:
                say("done")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
