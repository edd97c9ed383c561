"""Publish messages, with and without waiting for each ack, and read them back in log order."""

from example_broker import broker_or_start, fresh

from penstock.client import Client


def main() -> None:
    with broker_or_start(__doc__) as servers, Client(servers) as client:
        topic = fresh("orders")
        client.admin.create_topic(topic, partitions=2)

        # `publish` returns when the message is on disk (in a cluster: on the disks of a majority).
        stored = client.publish(topic, b'{"amount": 12}', key="alice", headers={"source": "shop"})
        print(f"stored in partition {stored.partition} at offset {stored.offset}")

        # `publish_soon` returns at once and sends many messages in one batch.
        futures = [
            client.publish_soon(topic, f'{{"amount": {n}}}', key=f"customer-{n % 5}") for n in range(1_000)
        ]
        client.flush()
        print(f"{sum(future.done() for future in futures)} more are stored")

        # The subscription starts with the oldest message. The loop ends when none has come for a second.
        total = count = 0
        with client.subscribe(topic, name=fresh("report"), read_old=True, idle_s=5.0) as subscription:
            for message in subscription:
                total += message.json()["amount"]
                count += 1
                message.ack()
        print(f"read {count} messages, {total} in all")


if __name__ == "__main__":
    main()
