"""The handlers of the web API, one file for each family of operations, and what they share: parameters and bodies
(`routing`, `bodies`), errors (`problems`), the document (`openapi`). `web.operations` has the table of all of them.

Handlers ask the Kafka handlers, here or on another node (`kafka.handlers.inner_client`), wherever a Kafka client could
ask the same."""
