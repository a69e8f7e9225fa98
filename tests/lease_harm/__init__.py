"""`make lease-harm`: what leases do to the commands that they pace, on a real broker with faults."""
