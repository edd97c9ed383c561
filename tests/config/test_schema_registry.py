"""The settings of a schema registry."""

import pytest

from penstock.config.loading import load_node_config
from penstock.errors import ConfigError


def test_a_registry_is_set_in_the_file_or_the_environment() -> None:
    text = '[schema_registry]\nurl = "https://registry.example.org:8081"\nuser_info_file = "login"\n'
    settings = load_node_config(toml_text=text).schema_registry
    assert settings.is_set
    assert (settings.url, settings.user_info_file) == ("https://registry.example.org:8081", "login")
    given = load_node_config(environment={"PENSTOCK_SCHEMA_REGISTRY_URL": "http://registry:8081/path"})
    assert given.schema_registry.url == "http://registry:8081/path"
    assert not load_node_config().schema_registry.is_set


@pytest.mark.parametrize(
    "url", ["registry:8081", "ftp://registry", "file:///etc/passwd", "http://", "http://[", "http://r/?a=b"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"schema_registry\.url.*https://host:8081"):
        load_node_config(environment={"PENSTOCK_SCHEMA_REGISTRY_URL": url})


def test_a_login_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="user_info_file") as refused:
        load_node_config(environment={"PENSTOCK_SCHEMA_REGISTRY_URL": "https://ada:secret@registry"})
    assert "secret" not in str(refused.value)


def test_a_login_without_a_registry_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"schema_registry\.url as well"):
        load_node_config(environment={"PENSTOCK_SCHEMA_REGISTRY_USER_INFO_FILE": "login"})
