"""`python -m slipway_common.web.healthcheck`: exit 0 if the local service is ready. For a container's HEALTHCHECK.

Queries /readyz rather than /livez: an unhealthy container is not restarted, and dependents that wait for a healthy
service wait until it is ready. Uses the standard library only, since it runs every few seconds.
"""

import http.client
import os
import sys
from typing import Final

TIMEOUT_SECONDS: Final = 3.0


def reason_unready(port: int) -> str:
    """Reason why the service on this loopback port is not ready; empty if it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        body = answer.read(2000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"port {port} does not answer: {error}"
    finally:
        connection.close()
    return "" if answer.status == 200 else f"{answer.status} {body}"


def main() -> None:
    port = os.environ.get("SLIPWAY_PORT", "")
    if not port.isdecimal():
        sys.exit("SLIPWAY_PORT must be set to the service's port")
    sys.exit(reason_unready(int(port)) or 0)


if __name__ == "__main__":
    main()
