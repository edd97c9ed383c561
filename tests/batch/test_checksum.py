"""The checksum is CRC-32C, and loading it does not load the package that it comes in."""

import subprocess
import sys

from penstock.batch.checksum import crc32c


def test_the_checksum_is_the_one_of_rfc_3720():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_a_checksum_is_continued_from_the_bytes_before():
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


def test_a_broker_is_imported_without_the_metadata_of_packages():
    code = "import sys; from penstock import Broker; print('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
