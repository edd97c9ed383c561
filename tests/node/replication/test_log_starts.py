"""The leader decides where a log starts: followers follow as far as they can, and continue later."""

from penstock.raft import StartAt
from tests.kafka.requests import create, write
from tests.kafka.trio import Trio


def test_a_replica_that_is_behind_follows_its_leaders_log_start_when_it_has_caught_up() -> None:
    """Its leader sends it once, and that may be before the replica knows that the deleted records were committed."""
    with Trio() as trio:
        with trio.client(1) as client:
            create(client, "t")
        leader, follower = trio.leader("t"), trio.followers("t")[0]
        with trio.client(leader) as client:
            write(client, "t")
            trio.eventually(lambda: trio.replica(follower, "t").high_watermark == 1)
            with trio.cut_off(follower):
                for _ in range(3):
                    write(client, "t")
                replica = trio.replica(follower, "t")
                trio.call(lambda: replica.replica.consensus.carry_out([StartAt(3)]))
                assert replica.log.start_offset == 1
            trio.eventually(lambda: replica.high_watermark == 4)
        trio.eventually(lambda: replica.log.start_offset == 3)
