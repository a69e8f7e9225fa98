"""`make recordings`: answers of real services on real rows, for tests of clients."""

import asyncio
import json
import tempfile
from pathlib import Path

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.deployment import deployment_on
from tests.support.recording import FILE, record


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder, "postgres"), {"fsync": "off"})
        await server.start()
        try:
            async with deployment_on(server, Path(folder)) as deployment:
                recorded = await record(deployment)
        finally:
            await server.stop()
    FILE.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"{FILE.name}: {len(recorded)} answers")


if __name__ == "__main__":
    asyncio.run(main())
