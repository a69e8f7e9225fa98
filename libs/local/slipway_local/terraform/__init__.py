"""Terraform for tests and the demo: its programs, and a provider whose machines are entries of a folder."""
