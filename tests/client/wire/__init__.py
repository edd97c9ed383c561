"""The lean client against embedded brokers, and against peers that misbehave."""
