"""The requirements of the lease-broker, each with the test that accepts it."""
