"""Fuzzing of the HTTP APIs from their committed OpenAPI documents (`make fuzz`)."""
