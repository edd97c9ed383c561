"""A work queue whose worker crashes: another worker gets its jobs, and none is lost.

The first worker is a separate process that dies in the middle of its fourth job.
"""

import os
import subprocess
import sys

from example_broker import broker_or_start, fresh

from penstock.client import Client, Job

JOBS = 10
CRASHES_AT = 4


def main() -> None:
    with broker_or_start(__doc__) as servers, Client(servers) as client:
        topic, name = fresh("thumbnails"), fresh("workers")
        client.admin.create_topic(topic)
        client.admin.create_queue(name, topic=topic)
        for number in range(1, JOBS + 1):
            client.publish_soon(topic, f"picture-{number}.png")
        client.flush()
        print(f"{JOBS} jobs wait")

        dead = subprocess.run([sys.executable, __file__, "--crash", servers, topic, name], check=False)
        print(f"the first worker died with status {dead.returncode}; a second one takes over")

        # Its connection broke, so the jobs that it had not acked are available again at once.
        finished: list[str] = []

        @client.worker(name, topic=topic)
        def make_thumbnail(job: Job) -> None:
            finished.append(job.text())
            again = ", for the second time" if job.deliveries > 1 else ""
            print(f"  second worker: {job.text()}{again}")
            if len(finished) == JOBS - CRASHES_AT + 1:
                client.stop()

        client.run()
        left = client.admin.queue(name).undone
        print(f"the second worker did {len(finished)}; {left} jobs are left")


def crash(servers: str, topic: str, name: str) -> None:
    """Works until the fourth job, and then dies."""
    with Client(servers) as client, client.queue(name, topic=topic, prefetch=1) as queue:
        for number, job in enumerate(queue, 1):
            if number == CRASHES_AT:
                print(f"  first worker: {job.text()} ... (crash)", flush=True)
                os._exit(1)
            job.ack().wait()
            print(f"  first worker: {job.text()}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--crash"]:
        crash(*sys.argv[2:])
    else:
        main()
