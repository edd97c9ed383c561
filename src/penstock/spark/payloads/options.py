"""The options for the format of a record's value. Names are Spark options: their case does not matter."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from .interfaces import PayloadError, shown

VALUE_FORMATS = ("raw", "json", "avro", "protobuf", "csv", "arrow")
REGISTRY_FORMATS = ("avro", "protobuf")
AVRO_FRAMINGS = ("none", "confluent", "container")
SCHEMA_ID_PLACES = ("prefix", "header")
SECRET_OPTIONS = ("schemaRegistryUserInfo",)
"""Never stored, and shown nowhere."""
# A sample is read on the driver while the query is planned.
MAX_SAMPLE_RECORDS = 1_000_000
PAYLOAD_OPTIONS = (
    "valueFormat",
    "valueSchema",
    "inferSampleSize",
    "avroFraming",
    "avroSchemaId",
    "csvDelimiter",
    "csvQuote",
    "schemaRegistryUrl",
    "schemaRegistrySubject",
    "schemaIdIn",
    *SECRET_OPTIONS,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadOptions:
    value_format: str = "raw"
    value_schema: str | None = None  # DDL, Spark's JSON, or an Avro schema where value_format is avro
    infer_sample_size: int = 1000  # records
    avro_framing: str = "none"
    # Confluent framing without a registry: the ids of schemas that value_schema can read. Empty: any. value_schema is
    # applied as the writer's schema whatever the id says.
    avro_schema_ids: frozenset[int] = frozenset()
    csv_delimiter: str = ","
    csv_quote: str = '"'
    registry_url: str | None = None
    registry_user_info: str | None = field(default=None, repr=False)
    registry_subject: str | None = None  # for the type of the column; TOPIC-value by default
    schema_id_in: str = "prefix"

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "PayloadOptions":
        """Reads a data source's options, and ignores those that are not about payloads."""
        given = {name.lower(): value for name, value in options.items()}
        found = {name: given[name.lower()] for name in PAYLOAD_OPTIONS if name.lower() in given}
        made = cls(
            value_format=found.get("valueFormat", "raw").lower(),
            value_schema=found.get("valueSchema"),
            infer_sample_size=_count("inferSampleSize", found.get("inferSampleSize", "1000")),
            avro_framing=found.get("avroFraming", "none").lower(),
            avro_schema_ids=_ids(found.get("avroSchemaId", "")),
            csv_delimiter="\t" if found.get("csvDelimiter") == "\\t" else found.get("csvDelimiter", ","),
            csv_quote=found.get("csvQuote", '"'),
            registry_url=found.get("schemaRegistryUrl"),
            registry_user_info=found.get("schemaRegistryUserInfo"),
            registry_subject=found.get("schemaRegistrySubject"),
            schema_id_in=found.get("schemaIdIn", "prefix").lower(),
        )
        made.validate()
        _refuse_strays(found, made.value_format)
        return made

    def validate(self) -> None:
        _one_of("valueFormat", self.value_format, VALUE_FORMATS)
        _one_of("avroFraming", self.avro_framing, AVRO_FRAMINGS)
        _one_of("schemaIdIn", self.schema_id_in, SCHEMA_ID_PLACES)
        self._check_registry()
        if not 1 <= self.infer_sample_size <= MAX_SAMPLE_RECORDS:
            raise PayloadError(
                f"inferSampleSize={self.infer_sample_size}: expected 1 to {MAX_SAMPLE_RECORDS} records"
            )
        _one_character("csvDelimiter", self.csv_delimiter)
        _one_character("csvQuote", self.csv_quote)
        if self.csv_delimiter == self.csv_quote:
            raise PayloadError(f"csvDelimiter and csvQuote are both {self.csv_quote!r}; they must differ")
        if self.value_schema is not None and not self.value_schema.strip():
            raise PayloadError(
                "valueSchema is empty; give a schema, or leave it out to infer one from a sample"
            )

    def _check_registry(self) -> None:
        if self.registry_url is None:
            if self.value_format == "protobuf":
                raise PayloadError(
                    "valueFormat=protobuf needs schemaRegistryUrl: a message does not carry its schema"
                )
            return
        _check_url(self.registry_url)
        if self.avro_framing == "container" or self.avro_schema_ids:
            raise PayloadError(
                "schemaRegistryUrl is for avroFraming=confluent without avroSchemaId: the registry has each id's schema"
            )


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise PayloadError(
            "schemaRegistryUrl has a login in it; give that as schemaRegistryUserInfo, which is shown nowhere"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PayloadError(f"schemaRegistryUrl={shown(url)!r}: expected an address such as https://host:8081")


def _refuse_strays(found: Mapping[str, str], value_format: str) -> None:
    """Refuses options of other formats: they would silently have no effect."""
    for name in found:
        if name.startswith("schema") and "schemaRegistryUrl" not in found:
            raise PayloadError(f"{name} needs schemaRegistryUrl")
        if name.startswith("schema") and value_format not in REGISTRY_FORMATS:
            raise PayloadError(
                f"{name} is an option of valueFormat=avro or protobuf, but valueFormat is {value_format}"
            )
        owner = "avro" if name.startswith("avro") else "csv" if name.startswith("csv") else None
        if owner and owner != value_format:
            raise PayloadError(
                f"{name} is an option of valueFormat={owner}, but valueFormat is {value_format}"
            )
        if value_format == "raw" and name in ("valueSchema", "inferSampleSize"):
            raise PayloadError(
                f"{name} needs a valueFormat other than raw: one of {_listed(VALUE_FORMATS[1:])}"
            )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PayloadError(f"{name}={shown(value)!r}: expected one of {_listed(allowed)}")


def _one_character(name: str, value: str) -> None:
    if len(value) != 1 or not value.isascii() or value in "\r\n\0":
        raise PayloadError(f"{name}={shown(value)!r}: expected one ASCII character that is not a line break")


def _count(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise PayloadError(f"{name}={shown(text)!r}: expected a whole number") from None


def _ids(text: str) -> frozenset[int]:
    found = frozenset(_count("avroSchemaId", part) for part in text.split(",") if part.strip())
    for number in found:
        if not 0 <= number < 1 << 31:
            raise PayloadError(f"avroSchemaId={number}: expected schema ids from 0 to 2147483647")
    return found


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
