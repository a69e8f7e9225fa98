"""Runs of the CLI: workspaces, plan, apply, refresh, destroy and import, limits and interruptions."""
