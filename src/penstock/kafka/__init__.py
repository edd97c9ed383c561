"""Kafka's protocol: the codec (`wire`), the handlers of its APIs (`handlers`) and the listener (`server`)."""
