"""A worker of the demo, in a process of its own so that it can be killed: does jobs, and says which ones are done."""

import sys

from penstock.client import Client


def main(bootstrap: str, topic: str, group: str) -> None:
    with Client(bootstrap) as client, client.queue(topic, group=group, prefetch=50) as jobs:
        for job in jobs:
            job.ack().wait()
            sys.stdout.write(f"{int(job.value or b'0')}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
