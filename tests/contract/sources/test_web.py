"""Behaviour common to sources over HTTP: ETags, Retry-After, proxies, a private CA, and pages that are no answer."""

import gzip
import ssl
from pathlib import Path
from typing import Any

import pytest

from slipway_common.declaration.strict_yaml import write
from slipway_monitor.domain.counts import Counts, Unreadable
from slipway_monitor.loops.report import read_once
from slipway_monitor.source_file import read
from slipway_monitor.sources import web
from slipway_monitor.sources.port import Source
from tests.contract.sources.worlds import Page
from tests.support.authority import Authority

COUNTED = Counts(3)


@pytest.fixture
def page() -> Any:
    made = Page()
    made.bodies = {"/queue": 3}
    yield made
    made.shut()


def source(url: str, **settings: Any) -> Source:
    usual = {"name": "builds", "kind": "http", "counts": "waiting", "claims": "hooks", "pool": "linux", "url": url}
    (entry,) = read(write({"sources": [usual | settings]}))
    return entry.open()


async def counted(opened: Source) -> list[Counts]:
    return list((await read_once(opened, 5.0)).counts)


async def test_an_answer_is_asked_for_again_by_its_etag(page: Page) -> None:
    opened = source(f"{page.url}/queue")
    for tasks in (3, 3, 4):
        page.bodies = {"/queue": tasks}
        assert await counted(opened) == [Counts(tasks)]
    assert [status for *_, status in page.requests] == [200, 304, 200]
    await opened.close()


async def test_an_etag_that_cannot_be_sent(page: Page) -> None:
    """The page is asked for anew, for ever and not never again."""
    page.etag = '"\xe9"'
    opened = source(f"{page.url}/queue")
    for _ in range(2):
        assert await counted(opened) == [COUNTED]
    assert [status for *_, status in page.requests] == [200, 200]
    await opened.close()


async def test_a_redirect(page: Page) -> None:
    """It is not followed, since the token would go there too, and where it leads is not shown."""
    page.status, page.headers = 302, {"Location": "http://127.0.0.1:1/hunter2"}
    opened = source(f"{page.url}/queue")
    with pytest.raises(Unreadable, match="answered 302, a redirect, which is not followed") as refused:
        await counted(opened)
    assert "hunter2" not in str(refused.value)
    await opened.close()


async def test_answers_of_one_path_are_told_apart(page: Page) -> None:
    """Queries of a Prometheus behind a cache that gives ETags: what runs is not what waits."""
    vector = "/api/v1/query?query={}"
    for query, value in (("waiting", "5"), ("running", "2")):
        result = [{"metric": {}, "value": [1.0, value]}]
        page.bodies[vector.format(query)] = {"status": "success", "data": {"resultType": "vector", "result": result}}
    both = {"kind": "prometheus", "counts": "both", "tasks": "waiting", "running": "running"}
    opened = source(page.url, **both)
    for _ in range(2):
        assert await counted(opened) == [Counts(5, 2)]
    assert [status for *_, status in page.requests] == [200, 200, 304, 304]
    await opened.close()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_page_may_ask_not_to_be_read(page: Page, status: int) -> None:
    page.status, page.headers = status, {"Retry-After": "40"}
    opened = source(f"{page.url}/queue")
    with pytest.raises(Unreadable, match=f"answered {status}") as refused:
        await counted(opened)
    assert refused.value.retry_after_seconds == 40
    await opened.close()


async def test_a_proxy_of_the_environment(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", page.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.2")
    page.bodies = {"http://queue.invalid/queue": 3}
    opened = source("http://queue.invalid/queue")
    assert await counted(opened) == [COUNTED]
    beside = source("http://127.0.0.2:1/queue")
    with pytest.raises(Unreadable, match="not reached"):
        await counted(beside)
    for each in (opened, beside):
        await each.close()


async def test_a_private_authority(page: Page, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("queue"))
    page.serve_tls(context)
    url = f"{page.url.replace('http:', 'https:')}/queue"
    trusting, other = source(url, ca_file=str(authority.ca_file)), source(url)
    assert await counted(trusting) == [COUNTED]
    with pytest.raises(Unreadable, match="certificate verify failed"):
        await counted(other)
    without = source(url, ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(Unreadable, match=r"none\.pem: No such file"):
        await counted(without)
    for each in (trusting, other, without):
        await each.close()


async def test_a_token_is_read_anew(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "token"
    opened = source(f"{page.url}/queue", token_file=str(file))
    with pytest.raises(Unreadable, match="token: No such file"):
        await counted(opened)
    for token in ("one", "two"):
        file.write_text(token)
        assert await counted(opened) == [COUNTED]
        assert page.requests[-1][1]["Authorization"] == f"Bearer {token}"
    await opened.close()


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"\xff\xfe", b"[" * 100_000, b"1" + b"0" * 400, b'{"a":', b"true", b'"3"']
)
async def test_an_answer_that_is_no_count(page: Page, body: bytes) -> None:
    page.bodies = {"/queue": body}
    opened = source(f"{page.url}/queue")
    with pytest.raises(Unreadable):
        await counted(opened)
    await opened.close()


async def test_an_answer_that_is_compressed(page: Page) -> None:
    """It was not asked for, and is not unpacked: 10 kB of it may be 10 MB."""
    page.bodies, page.headers = {"/queue": gzip.compress(b"3" + b" " * 10_000_000)}, {"Content-Encoding": "gzip"}
    opened = source(f"{page.url}/queue")
    with pytest.raises(Unreadable, match="answered compressed"):
        await counted(opened)
    assert page.requests[0][1]["Accept-Encoding"] == "identity"
    await opened.close()


async def test_a_page_without_an_end(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of it is read than an answer may have."""
    monkeypatch.setattr(web, "ANSWER_BYTES_MAX", 100_000)
    page.bodies = {"/queue": b"1" * 50_000_000}
    opened = source(f"{page.url}/queue")
    with pytest.raises(Unreadable, match="more than 100,000 bytes"):
        await counted(opened)
    page.bodies = {"/queue": 3}
    assert await counted(opened) == [COUNTED]
    await opened.close()
