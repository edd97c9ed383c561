"""Where the results of a request are in its response, for the audit log (`audited`)."""

from typing import NamedTuple

from penstock.types import ResourceType


class Results(NamedTuple):
    """One row of the response for each resource."""

    rows: str
    """The list of the response."""
    name: str
    """The field of a row that names its resource."""
    resource: ResourceType
    """ANY: each row has a `resource_type`."""
    asked: str = ""
    """The list of the request that names the resources, if rows do not: in the same order."""
    request_name: str = ""
    """The field of the request that names the only resource."""
