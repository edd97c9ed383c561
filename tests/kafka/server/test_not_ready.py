"""A node that has not joined its cluster, or not loaded its metadata, answers nothing about topics."""

import asyncio
from pathlib import Path

import pytest

from penstock.config import Address, NodeConfig
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.kafka.wire.messages.metadata import MetadataRequest
from penstock.service import Service
from tests.kafka.raw import RawClient
from tests.kafka.trio import Reached

ANYWHERE = Address("127.0.0.1", 0)
UNUSED_ADDRESS = Address("127.0.0.1", 1)


def test_a_node_that_waits_for_its_seeds_answers_api_versions_and_refuses_everything_else(
    tmp_path: Path,
) -> None:
    config = NodeConfig(
        data_dir=str(tmp_path),
        kafka=ANYWHERE,
        http=None,
        cluster=ANYWHERE,
        seeds=(UNUSED_ADDRESS,),
        node_id=1,
    )

    def ask(address: Address) -> None:
        with RawClient(Reached(str(address))) as client:
            answer = client.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            assert isinstance(answer, ApiVersionsResponse)
            with pytest.raises(ConnectionError):
                client.call(ApiKey.METADATA, 9, MetadataRequest(topics=None))

    async def scenario() -> None:
        service = Service(config)
        await service.start()
        try:
            await asyncio.to_thread(ask, service.kafka_address)
        finally:
            await service.stop()

    asyncio.run(scenario())
