"""Kafka consumers, one file per topic. Handlers record events as rows; loops decide."""
