"""Client and AsyncClient against embedded brokers, and their sessions without any."""
