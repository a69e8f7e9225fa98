"""What this service does by itself; one loop a file, each runs in every replica."""
