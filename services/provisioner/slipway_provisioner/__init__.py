"""Provisioner: decides what is missing and where to launch it, launches it, and knows every worker to its end."""
