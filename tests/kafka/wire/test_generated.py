"""The generated files match the generator, and importing the codec loads none that is not used."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

import penstock.kafka.wire.messages
from penstock.kafka.wire import ApiKey, request_class, response_class
from penstock.kafka.wire.schema import Message, default_of

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.long
def test_message_files_match_the_generator() -> None:
    """Needs the network or Maven's own cache, for the jar with Kafka's schemas."""
    spec = importlib.util.spec_from_file_location("generate_messages", ROOT / "tools/generate_messages.py")
    generator = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = generator
    spec.loader.exec_module(generator)
    folder = pathlib.Path(penstock.kafka.wire.messages.__file__).parent
    assert generator.generate() == {path.name: path.read_text() for path in folder.glob("*.py")}


def test_importing_the_codec_loads_no_messages_and_no_io_modules() -> None:
    code = "import sys, penstock.kafka.wire; print(*sys.modules)"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, text=True
        ).stdout.split()
    )
    messages = {name for name in loaded if name.startswith("penstock.kafka.wire.messages.")}
    assert messages == {"penstock.kafka.wire.messages.index"}
    assert not loaded & {"kio", "asyncio", "socket", "ssl", "logging", "hypothesis"}


def test_every_message_can_be_made_without_arguments() -> None:
    for api_key in ApiKey:
        for cls in (request_class(api_key), response_class(api_key)):
            assert cls() == cls()


def test_defaults_are_not_shared_between_messages() -> None:
    for api_key in ApiKey:
        for cls in (request_class(api_key), response_class(api_key)):
            check_defaults(cls)


def check_defaults(cls: type[Message]) -> None:
    first, second = cls(), cls()
    for field in cls.SCHEMA:
        value = getattr(first, field.name)
        assert value == default_of(cls, field.name)
        if isinstance(value, list | Message):
            assert value is not getattr(second, field.name)
        if isinstance(field.of, type):
            check_defaults(field.of)
