"""Replays of a run on a virtual clock: the same cloud, faults, tasks and limits under different launch rules. Pure."""
