"""Cost of a launched EC2 machine in the provisioner, beside a bare loop of the same client."""
