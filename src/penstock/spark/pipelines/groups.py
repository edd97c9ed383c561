"""Names of the consumer groups that show the progress of pipelines."""

import hashlib
import re
from typing import Final

MAX_FOLDER_CHARS: Final = 60
HASH_CHARS: Final = 8


def group_options(pipeline: str, folder: str) -> dict[str, str]:
    """Options of the source by which a pipeline's group is `penstock-PIPELINE-FOLDER-HASH`: it says which run it shows,
    and folders of the same name have different ones."""
    whole = folder.rstrip("/")
    last = re.sub(r"[^A-Za-z0-9._-]", "_", whole.rpartition("/")[2])[:MAX_FOLDER_CHARS]
    digest = hashlib.sha256(whole.encode()).hexdigest()[:HASH_CHARS]
    return {"groupIdPrefix": f"penstock-{pipeline}", "queryName": f"{last}-{digest}"}
