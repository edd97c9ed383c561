"""Two subscriptions to one topic. Each has its own position, and continues after its last ack when it reconnects."""

from example_broker import broker_or_start, fresh

from penstock.client import Client


def main() -> None:
    with broker_or_start(__doc__) as servers, Client(servers) as client:
        topic, billing, mailing = fresh("orders"), fresh("billing"), fresh("mailing")
        client.admin.create_topic(topic)
        for number in range(1, 7):
            client.publish_soon(topic, f"order {number}")
        client.flush()

        print("billing reads three orders, acks two, and disconnects")
        with client.subscribe(topic, name=billing, read_old=True) as subscription:
            for _ in range(3):
                message = subscription.receive()
                assert message is not None
                print(f"  billing: {message.text()}")
                if message.text() != "order 3":
                    message.ack()

        print("mailing is independent of it, and gets all of them")
        with client.subscribe(topic, name=mailing, read_old=True, idle_s=5.0) as subscription:
            for message in subscription:
                print(f"  mailing: {message.text()}")
                message.ack()

        print("billing reconnects: it gets the order that was not acked, and a new one")
        client.publish(topic, "order 7")
        with client.subscribe(topic, name=billing, idle_s=5.0) as subscription:
            for message in subscription:
                print(f"  billing: {message.text()}")
                message.ack()

        for name in (billing, mailing):
            print(f"{name} lags {client.admin.group(name).total_lag} messages behind")


if __name__ == "__main__":
    main()
