"""Options: names in any case, and errors that name the option, its value and what was expected."""

import pickle

import pyarrow as pa
import pytest

from penstock.spark.payloads import PayloadError, PayloadOptions, decoder_for, encoder_for
from penstock.spark.payloads.ddl import parse_schema


def test_option_names_are_case_insensitive_and_other_options_are_ignored() -> None:
    made = PayloadOptions.from_options({"VALUEFORMAT": "CSV", "csvdelimiter": "\\t", "kafka.group.id": "x"})
    assert made == PayloadOptions(value_format="csv", csv_delimiter="\t")
    assert PayloadOptions.from_options({}) == PayloadOptions()
    ids = PayloadOptions.from_options(
        {"valueFormat": "avro", "avroFraming": "Confluent", "avroSchemaId": "1, 2"}
    )
    assert ids.avro_schema_ids == {1, 2}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"valueFormat": "xml"}, "valueFormat='xml': expected one of raw, json, avro, protobuf, csv, arrow"),
        (
            {"valueFormat": "avro", "avroFraming": "x"},
            "avroFraming='x': expected one of none, confluent, container",
        ),
        ({"valueFormat": "avro", "avroSchemaId": "x"}, "avroSchemaId='x': expected a whole number"),
        ({"valueFormat": "avro", "avroSchemaId": "-1"}, "avroSchemaId=-1"),
        ({"valueFormat": "csv", "csvDelimiter": "ab"}, "csvDelimiter='ab': expected one ASCII character"),
        ({"valueFormat": "csv", "csvQuote": ","}, "csvDelimiter and csvQuote are both ','"),
        ({"valueFormat": "json", "inferSampleSize": "0"}, "inferSampleSize=0"),
        (
            {"valueFormat": "json", "inferSampleSize": "many"},
            "inferSampleSize='many': expected a whole number",
        ),
        ({"valueFormat": "json", "valueSchema": " "}, "valueSchema is empty"),
        ({"valueFormat": "json", "csvQuote": "'"}, "csvQuote is an option of valueFormat=csv"),
        ({"valueSchema": "a int"}, "valueSchema needs a valueFormat other than raw"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(PayloadError) as caught:
        PayloadOptions.from_options(options)
    assert expected in str(caught.value)


@pytest.mark.parametrize("value_format", ["raw", "xml"])
def test_formats_without_a_decoder_are_refused(value_format: str) -> None:
    for make in (decoder_for, encoder_for):
        with pytest.raises(PayloadError, match=f"{value_format}"):
            make(value_format, parse_schema("a int"), PayloadOptions())


@pytest.mark.parametrize("value_format", ["json", "csv", "avro", "arrow"])
def test_schemas_with_one_name_twice_or_no_fields_are_refused(value_format: str) -> None:
    for ddl in ("a int, a string", "struct<>"):
        with pytest.raises(PayloadError):
            decoder_for(value_format, parse_schema(ddl), PayloadOptions())


@pytest.mark.parametrize("value_format", ["json", "csv", "avro", "arrow"])
def test_decoders_and_encoders_travel_to_executors(value_format: str) -> None:
    values = pa.array([{"a": 1}], pa.struct([("a", pa.int32())]))
    decoder, encoder = (
        pickle.loads(pickle.dumps(make(value_format, parse_schema("a int"), PayloadOptions())))
        for make in (decoder_for, encoder_for)
    )
    assert decoder.decode(encoder.encode(values)).values.to_pylist() == [{"a": 1}]
