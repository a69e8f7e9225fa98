"""Attacks on running services, each a door that has to be closed."""
