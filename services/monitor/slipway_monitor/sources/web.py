"""HTTP for sources: clients that sources share, and answers that are JSON or Unreadable.

Proxies are those of the environment (HTTPS_PROXY, NO_PROXY).
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx2
import msgspec

from slipway_common.base.clock import utc_now
from slipway_common.base.redaction import redacted
from slipway_common.base.tls import UnusableFile, client_context
from slipway_monitor.domain.counts import Unreadable
from slipway_monitor.sources.port import SourceSettings, secret

LIMITS: Final = httpx2.Limits(max_connections=200, max_keepalive_connections=50)
NO_COOKIES: Final = DefaultCookiePolicy(allowed_domains=())
ANSWER_BYTES_MAX: Final = 10_000_000
QUOTING: Final = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL, ValueError)
"""Errors that quote what would be sent."""


class WebSettings(SourceSettings):
    """Settings of sources over HTTP."""

    url: str
    token_file: Path | None = None
    """File with a bearer token, read before each request."""
    ca_file: Path | None = None
    """Certificates of a private CA."""


class SharedClient:
    """A client that sources of one CA share, in an event loop: each would take tens of kilobytes, one with TLS
    megabytes, and connect anew for each read. It is closed with the last of them, and keeps no cookies, which one
    source could send for another."""

    _open: ClassVar[dict[tuple[asyncio.AbstractEventLoop, bool, Path | None], "SharedClient"]] = {}

    def __init__(self, key: tuple[asyncio.AbstractEventLoop, bool, Path | None]) -> None:
        _, is_https, ca_file = key
        self._key = key
        self._users = 0
        context = client_context(ca_file=ca_file) if is_https else False
        self.http = httpx2.AsyncClient(verify=context, limits=LIMITS, cookies=CookieJar(NO_COOKIES))

    @classmethod
    def acquire(cls, *, is_https: bool, ca_file: Path | None) -> "SharedClient":
        """The client for one more source. Raises UnusableFile."""
        key = asyncio.get_running_loop(), is_https, ca_file
        shared = cls._open.get(key) or cls._open.setdefault(key, cls(key))
        shared._users += 1
        return shared

    async def release(self) -> None:
        """Give it up for one source."""
        self._users -= 1
        if not self._users:
            del self._open[self._key]
            await self.http.aclose()


class Web:
    """Requests of one source for JSON. An answer with an ETag is asked for again with it."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._client: SharedClient | None = None
        self._answers: dict[tuple[str, str], tuple[str, Any]] = {}

    async def get(
        self, path: str = "", params: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None
    ) -> Any:
        """Get the JSON at a path. Raises Unreadable."""
        settings = self._settings
        url = settings.url.rstrip("/") + path if path else settings.url
        # Compressed, an answer that is short enough to be read could be gigabytes.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if token := secret(settings.token_file):
            headers["Authorization"] = f"Bearer {token}"
        asked = path, str(params)
        etag, known = self._answers.get(asked, ("", None))
        if etag:
            headers["If-None-Match"] = etag
        try:
            if self._client is None:
                is_https = settings.url.startswith("https:")
                self._client = SharedClient.acquire(is_https=is_https, ca_file=settings.ca_file)
            answer, content = await _answer(
                self._client.http, url, params=params, headers=headers, auth=auth, timeout=settings.timeout_seconds
            )
        except UnusableFile as error:
            raise Unreadable(str(error)) from None
        except QUOTING as error:
            raise Unreadable(f"not sent: {type(error).__name__} in its url, token_file or user") from None
        except (httpx2.HTTPError, OSError) as error:
            raise Unreadable(f"not reached: {redacted(str(error)) or type(error).__name__}") from None
        if answer.status_code == 304 and etag:
            return known
        if answer.has_redirect_location:
            raise Unreadable(f"answered {answer.status_code}, a redirect, which is not followed: change its url")
        if not answer.is_success:
            raise Unreadable(f"answered {answer.status_code}", retry_after(answer.headers.get("Retry-After", "")))
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise Unreadable("answered compressed, which was not asked for")
        if len(content) > ANSWER_BYTES_MAX:
            raise Unreadable(f"answered more than {ANSWER_BYTES_MAX:,} bytes")
        try:
            body = msgspec.json.decode(content)
        except msgspec.DecodeError:
            raise Unreadable("the answer is not JSON") from None
        if (new := answer.headers.get("ETag", "")) and new.isascii():  # others cannot be sent
            self._answers[asked] = new, body
        return body

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.release()


async def _answer(http: httpx2.AsyncClient, url: str, **request: Any) -> tuple[httpx2.Response, bytearray]:
    """An answer and its content, of which no more is read than may be too long: a page may never end."""
    content = bytearray()
    async with http.stream("GET", url, **request) as answer:
        async for chunk in answer.aiter_raw():
            content += chunk
            if len(content) > ANSWER_BYTES_MAX:
                break
    return answer, content


def retry_after(text: str) -> float:
    """Seconds in a Retry-After header: a number or a date; 0 if it is neither."""
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - utc_now()).total_seconds())
