"""Reading the cluster key."""

import logging
import os
import stat
from pathlib import Path

from penstock.errors import ConfigError

log = logging.getLogger("penstock.peers")

SHORTEST_KEY = 16
"""Bytes. An attacker who has recorded a proof can try keys against it, so there must be too many to try."""
LONGEST_KEY = 4096
_FIELD = "cluster_key_file"


def read_cluster_key(path: str | None) -> bytes | None:
    """The file's bytes without the white space around them; None for no file. ConfigError says what is wrong with
    it."""
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                log.warning("%s: every user of this machine can read the cluster key (`chmod 600`)", path)
            key = file.read(LONGEST_KEY + 1).strip()
    except OSError as problem:
        raise ConfigError(_FIELD, path, f"a file that can be read ({problem.strerror})") from None
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        expected = (
            f"a key of {SHORTEST_KEY} to {LONGEST_KEY} bytes in it (there are {len(key)}), such as "
            "`openssl rand -hex 32` makes"
        )
        raise ConfigError(_FIELD, path, expected)
    return key
