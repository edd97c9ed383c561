"""A web service that takes orders and leaves the work to workers.

    uvicorn app:app                                     workers beside it: penstock worker jobs:client
    SHOP_WORKERS_INSIDE=1 uvicorn app:app               workers inside the web server

An order is accepted when it is on disk on a majority of the replicas: `publish` returns then, and the answer is 202. A
client that gets no answer sends the order again with the same id; the topic stores it once.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jobs
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from penstock.client import AsyncClient, PublishFailed, Unreachable

WORKERS_INSIDE = os.environ.get("SHOP_WORKERS_INSIDE") == "1"


class Order(BaseModel):
    id: str
    cents: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    await asyncio.to_thread(jobs.declare)
    async with AsyncClient(jobs.SERVERS) as client:
        app.state.client = client
        # Its own client has the workers. It takes no signals here: the web server does, and ends them below.
        inside = (
            asyncio.create_task(asyncio.to_thread(jobs.client.run, signals=False)) if WORKERS_INSIDE else None
        )
        yield
        if inside is not None:
            jobs.client.stop()
            await inside
    await asyncio.to_thread(jobs.client.close)


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def accept(order: Order) -> dict[str, Any]:
    try:
        stored = await app.state.client.publish(
            jobs.TOPIC, json=order.model_dump(), message_id=order.id, timeout=5
        )
    except (PublishFailed, Unreachable) as problem:
        raise HTTPException(503, f"not accepted, please send it again: {problem}") from None
    return {"id": order.id, "partition": stored.partition, "offset": stored.offset}


@app.get("/orders/{order_id}")
def look_up(order_id: str) -> dict[str, Any]:
    with jobs.database() as rows:
        found = rows.execute("SELECT cents, times FROM charged WHERE id = ?", (order_id,)).fetchone()
    if found is None:
        raise HTTPException(404, f"order {order_id} is not charged yet")
    return {"id": order_id, "cents": found[0], "times": found[1]}
