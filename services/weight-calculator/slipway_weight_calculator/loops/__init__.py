"""One loop a file: what is decided without being told."""
