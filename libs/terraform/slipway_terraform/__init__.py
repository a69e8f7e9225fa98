"""Terraform provider plugins as shared processes, and runs of the CLI on them. Usable without the rest of Slipway."""
