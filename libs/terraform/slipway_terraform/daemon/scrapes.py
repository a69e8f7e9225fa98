"""Metrics over HTTP on loopback, for holders of a token: any user of the machine can connect there."""

import hmac
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client

from slipway_common.base.ids import hash_secret
from slipway_terraform.daemon.endpoint import EndpointUnavailable

BEARER: Final = "Bearer "
SUM: Final = re.compile(r"[0-9a-f]{64}")
REQUEST_SECONDS: Final = 10.0


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, *_: Any) -> None:  # the daemon's log has its own events
        pass


def serve_metrics(port: int, tokens_file: Path) -> int:
    """Serve the metrics to holders of a token whose SHA-256 sum the file has, and return the port. The file is read at
    each request. Raises EndpointUnavailable."""
    _check(tokens_file)
    metrics: Any = prometheus_client.make_wsgi_app()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if _admits(tokens_file, environ.get("HTTP_AUTHORIZATION", "")):
            answered: Iterable[bytes] = metrics(environ, start_response)
            return answered
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")])
        return ()

    try:
        server = make_server("127.0.0.1", port, answer, _Server, _Handler)
    except OSError as error:
        raise EndpointUnavailable(f"metrics_port {port}: {error.strerror}; set a free one") from None
    Thread(target=server.serve_forever, daemon=True, name="metrics").start()
    return server.server_port


def _admits(tokens_file: Path, authorization: str) -> bool:
    """True if the file has the sum of the token that was sent. Without a readable file nobody is admitted."""
    if not authorization.startswith(BEARER):
        return False
    try:
        sums = _sums(tokens_file)
    except (OSError, UnicodeDecodeError):
        return False
    sent = hash_secret(authorization.removeprefix(BEARER))
    return sum(hmac.compare_digest(each.encode(), sent.encode()) for each in sums) > 0  # none less, for equal times


def _check(tokens_file: Path) -> None:
    """Raise EndpointUnavailable unless the file has sums of tokens and nothing else."""
    try:
        sums = _sums(tokens_file)
    except OSError as error:
        problem = f"{tokens_file}: {error.strerror}"
    except UnicodeDecodeError:
        problem = f"{tokens_file}: not UTF-8"
    else:
        if sums and all(map(SUM.fullmatch, sums)):
            return
        problem = f"{tokens_file} must have the SHA-256 sums of tokens in lower-case hex, one a line"
    raise EndpointUnavailable(f"metrics_tokens_file {problem}; printf %s TOKEN | sha256sum prints one")


def _sums(tokens_file: Path) -> list[str]:
    return tokens_file.read_text(encoding="utf-8").split()
