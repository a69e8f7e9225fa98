"""Instance reaper of a large fleet on EC2: time of a round, memory, and launches beside it."""
