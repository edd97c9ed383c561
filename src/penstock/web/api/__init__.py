"""The web API, under /v1: topics, records and groups as JSON. Every answer is made of requests that Kafka's clients
could have sent, asked of the node that can answer them (`kafka.handlers.inner_client`). One file for each family; a row
in its table of operations is all that serving and describing it takes."""

from penstock.web.api.table import api_routes

__all__ = ["api_routes"]
