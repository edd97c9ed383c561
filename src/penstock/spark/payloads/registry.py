"""The decoders of values whose schemas are in a registry, and the types of columns that their schemas ask for."""

from pyspark.sql.types import StructType

from penstock.schema_registry.avro_references import inlined
from penstock.schema_registry.framing import WriterSchema

from .interfaces import Decoder, PayloadError
from .options import PayloadOptions
from .registry_decoder import Lookup, RegistryDecoder
from .spark_types import check_supported


def registry_decoder(schema: StructType, options: PayloadOptions, lookup: Lookup) -> Decoder:
    in_header = options.schema_id_in == "header"
    if options.value_format == "protobuf":
        _check_protobuf()
        from .arrow_read import no_refusal
        from .protobuf_read import protobuf_writer

        check_supported(schema, "protobuf", no_refusal)
        return RegistryDecoder(schema, lookup, protobuf_writer, indexes=True, in_header=in_header)
    from .avro import avro_refusal

    check_supported(schema, "avro", avro_refusal)
    return RegistryDecoder(schema, lookup, _avro_writer, indexes=False, in_header=in_header)


def registered_type(schema: WriterSchema) -> StructType:
    """The type of values of this schema; of a Protobuf file's first message."""
    if schema.schema_type == "PROTOBUF":
        _check_protobuf()
        from .protobuf_read import protobuf_writer

        return protobuf_writer(schema, (0,)).spark_type
    from .avro_schema import parse_avro

    found = parse_avro(inlined(schema.text, schema.references)).spark
    assert isinstance(found, StructType)
    return found


def _avro_writer(schema: WriterSchema, indexes: tuple[int, ...]) -> Decoder:
    from .avro_read import AvroDecoder
    from .avro_schema import parse_avro

    shape = parse_avro(inlined(schema.text, schema.references))
    assert isinstance(shape.spark, StructType)
    return AvroDecoder(shape.spark, shape, False, frozenset())


def _check_protobuf() -> None:
    try:
        import google.protobuf  # noqa: F401
    except ModuleNotFoundError:
        raise PayloadError("valueFormat=protobuf needs the package protobuf: pip install protobuf") from None
