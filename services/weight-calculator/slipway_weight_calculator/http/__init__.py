"""What people and programs without Kafka may ask."""
