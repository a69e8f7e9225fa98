"""Handlers of consumed events, one module per topic."""
