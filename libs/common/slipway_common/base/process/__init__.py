"""Processes of ours: their start, groups, end and identity, and what ends them once we are gone."""
