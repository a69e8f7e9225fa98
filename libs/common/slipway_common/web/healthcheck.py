"""`python -m slipway_common.web.healthcheck`: exit 0 if the local service is ready. For a container's HEALTHCHECK.

Queries /readyz rather than /livez: an unhealthy container is not restarted, and dependents that wait for a healthy
service wait until it is ready. Uses the standard library only, since it runs every few seconds.
"""

import http.client
import os
import ssl
import sys
from typing import Final

TIMEOUT_SECONDS: Final = 3.0


def reason_unready(port: int, certificate_file: str = "", key_file: str = "") -> str:
    """Reason why the service on this loopback port is not ready; empty if it is. With a certificate, the service's own,
    it is asked over TLS; its name is not checked, since nothing secret is sent to this port of the own container."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    if certificate_file:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            context.load_cert_chain(certificate_file, key_file or None)  # asked for if clients need certificates
        except OSError as error:
            return f"SLIPWAY_TLS_CERTIFICATE_FILE={certificate_file}: {error}"
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS, context=context)
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
    files = (os.environ.get(f"SLIPWAY_TLS_{name}_FILE", "") for name in ("CERTIFICATE", "KEY"))
    sys.exit(reason_unready(int(port), *files) or 0)


if __name__ == "__main__":
    main()
