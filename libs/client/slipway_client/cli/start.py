"""Entry point of `slipway`: without collections of garbage, of which importing modules makes none."""

import atexit
import gc


def main() -> None:
    """Run the command that the arguments name. Garbage is collected in one that makes more objects than its modules."""
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)  # nothing is collected at the end: the system frees all memory at once
    from slipway_client.cli.main import app

    app()
