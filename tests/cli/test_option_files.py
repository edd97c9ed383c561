"""Options that commands read from files, so that `ps` does not show them."""

from pathlib import Path

import click
import pytest

from penstock.cli.key_values import key_values_or_files


def test_options_come_from_arguments_and_files_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "registry.properties"
    file.write_text("# the registry\n\nschemaRegistryUserInfo = user:pass=word\nvalueFormat=avro\n")
    given = ("valueFormat=json", f"@{file}", "badRecords=null")
    assert key_values_or_files(given) == {
        "valueFormat": "avro",
        "schemaRegistryUserInfo": "user:pass=word",
        "badRecords": "null",
    }


def test_a_wrong_line_of_a_file_is_named_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "registry.properties"
    file.write_text("valueFormat=avro\nuser:password\n")
    with pytest.raises(click.BadParameter, match="expected NAME=VALUE in line 2") as error:
        key_values_or_files((f"@{file}",))
    assert "password" not in str(error.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="cannot be read"):
        key_values_or_files((f"@{tmp_path}/none",))
