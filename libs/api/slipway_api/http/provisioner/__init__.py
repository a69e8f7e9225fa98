"""HTTP API of the provisioner."""
