"""`python -m slipway_client.worker` is `slipway-worker`."""

from slipway_client.worker.cli import app

if __name__ == "__main__":
    app(prog_name="slipway-worker")
