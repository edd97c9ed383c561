"""The HTTP port: bodies in too many parts, bodies with too much in them, and requests that wait."""

import json
import threading
import time

from tools.hostile.attack import Attack, Stopwatch, http_request, read_response

TOPIC = "records"
QUEUE = "jobs"
CHUNKED = [("Transfer-Encoding", "chunked"), ("Content-Type", "application/json")]
CHUNKS = (300_000, 1_000_000)
RECORDS = 600_000
RECEIVES = 1_800
RECEIVE_MS = 30_000
SLOW_SENDERS = 500
QUEUES = 2_000
CREATORS = 4
LISTS = 20
HELD_SECONDS = 3.0


def create_records_topic(attack: Attack) -> None:
    attack.must_create(TOPIC)


def send_many_chunks(attack: Attack) -> None:
    statuses = []
    for method, path in (("POST", f"/v1/topics/{TOPIC}/records"), ("GET", "/v1/topics")):
        for count in CHUNKS:
            one = attack.connect(attack.node.http_port)
            try:
                one.sendall(http_request(method, path, headers=CHUNKED))
                one.sendall(b"1\r\n7\r\n" * count + b"0\r\n\r\n")
                statuses.append(str(read_response(one).status))
            except ConnectionError:
                statuses.append("closed")
            attack.close(one)
    attack.note = f"answers: {', '.join(statuses)}"


def publish_many_records(attack: Attack) -> None:
    body = b'{"records":[' + b'{"value":1},' * (RECORDS - 1) + b'{"value":1}]}'
    watch = Stopwatch()
    one = attack.connect(attack.node.http_port)
    try:
        one.sendall(http_request("POST", f"/v1/topics/{TOPIC}/records", body))
        status = str(read_response(one).status)
    except ConnectionError:
        status = "closed"
    attack.note = f"answer: {status} after {watch.seconds:.2f} s"


def send_bodies_slowly(attack: Attack) -> None:
    ones = [attack.connect(attack.node.http_port) for _ in range(SLOW_SENDERS)]
    for one in ones:
        one.sendall(http_request("POST", f"/v1/topics/{TOPIC}/records", b" " * 1_000)[:-990])
    for _ in range(10):
        time.sleep(HELD_SECONDS / 10)
        for one in ones:
            one.sendall(b" ")


# --- queues


def create_queue(attack: Attack) -> None:
    attack.http("POST", "/v1/queues", {"queue": QUEUE})


def wait_for_jobs(attack: Attack) -> None:
    """Another caller publishes meanwhile."""
    body = json.dumps({"max": 1, "wait_ms": RECEIVE_MS}).encode()
    for _ in range(RECEIVES):
        one = attack.connect(attack.node.http_port)
        one.sendall(http_request("POST", f"/v1/queues/{QUEUE}/receive", body))
    watch = Stopwatch()
    status = attack.http("POST", f"/v1/topics/{QUEUE}/records", {"records": [{"value": 1}]}).status
    attack.note = f"another caller's publish: {status} after {watch.seconds:.2f} s"
    time.sleep(HELD_SECONDS)


def create_many_queues(attack: Attack) -> None:
    create_queue(attack)
    threads = [
        threading.Thread(target=_create_queues, args=(attack, range(at, QUEUES, CREATORS)), daemon=True)
        for at in range(CREATORS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _create_queues(attack: Attack, numbers: range) -> None:
    one = attack.connect(attack.node.http_port)
    for number in numbers:
        body = json.dumps({"queue": f"queue-{number}", "topic": QUEUE}).encode()
        one.sendall(http_request("POST", "/v1/queues", body))
        if read_response(one).status != 201:
            attack.fail(f"queue {number} was not created")
            return


def list_many_queues(attack: Attack) -> None:
    slowest = 0.0
    for path in ("/v1/queues", "/metrics"):
        watch = Stopwatch()
        ones = [attack.connect(attack.node.http_port) for _ in range(LISTS)]
        for one in ones:
            one.sendall(http_request("GET", path))
        for one in ones:
            read_response(one)
        slowest = max(slowest, watch.seconds)
    attack.note = f"{LISTS} callers at once, all answered after {slowest:.2f} s"
