"""Values whose schemas are in a schema registry: how a value names its schema (`framing`), the registry's REST API
(`registry`), and values of Avro and Protobuf as JSON (`decoder`).

Spark's executors and the node use it. Nothing is imported here: executors that read other formats load none of it.
"""
