"""Ids of revisions of launch configs: `name@hash`."""


def name_of(config_id: str) -> str:
    """Name of the launch config of which this is a revision, as "name@hash", or the name itself."""
    return config_id.partition("@")[0]


def hash_of(config_id: str) -> str:
    """Hash of a revision in its id; empty for a name."""
    return config_id.partition("@")[2]
