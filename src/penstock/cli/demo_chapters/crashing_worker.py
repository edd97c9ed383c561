"""A worker of the demo, in a separate process that can be killed. It prints each job that it begins or finishes."""

import sys

from penstock.client import Client


def main(bootstrap: str, topic: str, group: str) -> None:
    with Client(bootstrap) as client, client.queue(group, topic=topic, prefetch=50) as jobs:
        for job in jobs:
            number = int(job.value or b"0")
            _say(f"begun {number}")
            job.ack().wait()
            _say(f"done {number}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
