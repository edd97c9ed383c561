"""The cluster key's file."""

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.node.peers import read_cluster_key


def test_the_key_is_the_content_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.key"
    file.write_bytes(b"  0123456789abcdef\n")
    assert read_cluster_key(str(file)) == b"0123456789abcdef"
    assert read_cluster_key(None) is None


@pytest.mark.parametrize(
    ("content", "said"), [(b"short\n", "there are 5"), (b"x" * 5000, "16 to 4096"), (None, "No such file")]
)
def test_an_invalid_key_is_refused_with_its_file(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "cluster.key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        read_cluster_key(str(file))
    assert (caught.value.field, caught.value.value) == ("cluster_key_file", str(file))


def test_a_world_readable_key_file_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "cluster.key"
    file.write_bytes(b"0123456789abcdef")
    file.chmod(0o644)
    read_cluster_key(str(file))
    assert "chmod 600" in caplog.text
    caplog.clear()
    file.chmod(0o600)
    read_cluster_key(str(file))
    assert caplog.text == ""
