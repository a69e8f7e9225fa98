"""Facts from Kafka → rows; one file per topic. Handlers record, loops decide."""
