"""Schemas of orders, in Avro and in Protobuf."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


def message_class(*fields: tuple[str, int], file: str = "order.proto") -> type[Message]:
    """A message shop.Order with these fields, and a nested one."""
    proto = descriptor_pb2.FileDescriptorProto(name=file, package="shop", syntax="proto3")
    proto.dependency.append("google/protobuf/timestamp.proto")
    proto.message_type.add(name="Other").field.add(name="x", number=1, type=9, label=1)
    order = proto.message_type.add(name="Order")
    for number, (name, kind) in enumerate(fields, 1):
        order.field.add(name=name, number=number, type=kind, label=1)
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=1)
    order.field.add(name="lines", number=20, type=11, label=3, type_name=".shop.Order.Line")
    order.field.add(name="at", number=21, type=11, label=1, type_name=".google.protobuf.Timestamp")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    order.field.add(name="tags", number=22, type=11, label=3, type_name=".shop.Order.TagsEntry")
    kinds = proto.enum_type.add(name="Kind")
    for number, name in enumerate(("SMALL", "LARGE")):
        kinds.value.add(name=name, number=number)
    order.field.add(name="kind", number=23, type=14, label=1, type_name=".shop.Kind")
    pool = descriptor_pool.DescriptorPool()
    known = descriptor_pb2.FileDescriptorProto()
    descriptor_pool.Default().FindFileByName("google/protobuf/timestamp.proto").CopyToProto(known)
    pool.Add(known)
    pool.Add(proto)
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return found
