"""Delayed messages, messages that are stored once however often they are published, and messages that expire."""

import time

from example_broker import broker_or_start, fresh

from penstock.client import Client

WINDOW = {"dedup.window.ms": "60000"}


def main() -> None:
    with broker_or_start(__doc__) as servers, Client(servers) as client:
        topic, name = fresh("mails"), fresh("mailers")
        client.admin.create_topic(topic, configs=WINDOW)
        client.admin.create_queue(name, topic=topic)

        first = client.publish(topic, "welcome, alice", message_id="welcome-alice")
        again = client.publish(topic, "welcome, alice", message_id="welcome-alice")
        print(f"published twice, stored once: the answers have offsets {first.offset} and {again.offset}")

        began = time.monotonic()
        client.publish(topic, "how do you like it?", delay=2.0)
        client.publish(topic, "today only: half the price", ttl=0.001)
        print("one mail is due in two seconds, one has expired already")

        with client.queue(name, topic=topic, idle_s=8.0) as queue:
            for job in queue:
                print(f"  after {time.monotonic() - began:.0f} s: {job.text()}")
                job.ack()


if __name__ == "__main__":
    main()
