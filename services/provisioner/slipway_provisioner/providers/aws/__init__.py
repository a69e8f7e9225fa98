"""Provider of EC2 instances."""
