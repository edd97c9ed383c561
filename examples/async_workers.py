"""Asyncio workers: eight jobs at once on one event loop, with retries, a dead letter, and a graceful end."""

import asyncio
import logging

from example_broker import broker_or_start, fresh

from penstock.client import AsyncClient, AsyncJob, Reject

JOBS = 40


async def work(servers: str) -> None:
    async with AsyncClient(servers) as client:
        topic, name = fresh("downloads"), fresh("downloaders")
        await client.admin.create_topic(topic)
        await client.admin.create_queue(name, topic=topic)
        await asyncio.gather(*[await client.publish_soon(topic, str(number)) for number in range(JOBS)])

        settled = failures = busy = most_busy = 0

        @client.worker(name, topic=topic, concurrency=8, max_attempts=3, backoff=0.2)
        async def download(job: AsyncJob) -> None:
            nonlocal settled, failures, busy, most_busy
            busy += 1
            most_busy = max(most_busy, busy)
            try:
                await asyncio.sleep(0.05)  # stands for a download
                if job.text() == "13":
                    settled += 1
                    raise Reject("13 can never be downloaded")
                if int(job.text()) % 10 == 7 and job.deliveries == 1:
                    failures += 1
                    raise ConnectionError("try again")  # the worker retries the job
                settled += 1
            finally:
                busy -= 1
                if settled == JOBS:
                    client.stop()

        finished = await client.run(grace=10, signals=True)
        print(f"{settled} jobs, {failures} of them at the second attempt, up to {most_busy} at once")
        print(f"all handlers have finished: {finished}")

        async with client.subscribe(
            f"{topic}.dlq", name=fresh("dead-letter-reader"), read_old=True
        ) as dead_letters:
            letter = await dead_letters.receive(timeout=10)
            assert letter is not None
            print(f"dead letter: {letter.text()}")


def main() -> None:
    logging.getLogger("penstock.client.workers").setLevel(logging.ERROR)  # the failures here are on purpose
    with broker_or_start(__doc__) as servers:
        asyncio.run(work(servers))


if __name__ == "__main__":
    main()
