"""Publish messages, wait for the acks or do not, and read them back in the log's order."""

from stage import broker_or_yours, fresh

from penstock.client import Client


def main() -> None:
    with broker_or_yours(__doc__) as servers, Client(servers) as client:
        topic = fresh("orders")
        client.admin.create_topic(topic, partitions=2)

        # `publish` returns when the message is on disk (in a cluster: on the disks of a majority).
        stored = client.publish(topic, b'{"amount": 12}', key="alice", headers={"source": "shop"})
        print(f"stored in partition {stored.partition} at offset {stored.offset}")

        # `publish_soon` goes on at once and sends many in one batch.
        futures = [
            client.publish_soon(topic, f'{{"amount": {n}}}', key=f"customer-{n % 5}") for n in range(1_000)
        ]
        client.flush()
        print(f"{sum(future.done() for future in futures)} more are stored")

        # A subscription reads from the oldest message on. It ends here when nothing came for a second.
        total = count = 0
        with client.subscribe(topic, name=fresh("report"), read_old=True, idle_s=1.0) as subscription:
            for message in subscription:
                total += message.json()["amount"]
                count += 1
                message.ack()
        print(f"read {count} messages, {total} in all")


if __name__ == "__main__":
    main()
