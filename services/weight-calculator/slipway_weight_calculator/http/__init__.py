"""HTTP API, for people and for programs without Kafka."""
