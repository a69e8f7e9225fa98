"""Pages of the screen, read from services, and the keys that open them."""

import asyncio
from collections.abc import Iterator

import pytest

from slipway_client.cli import page_reader
from slipway_client.cli.browser import Browser
from slipway_client.cli.watching import Watch, fetcher
from slipway_client.transport.http import Api
from slipway_client.view.navigation import Place
from tests.support.harness import until
from tests.support.recorded import ANSWERS, CONFIG_ID, ID, NOWHERE, RECORDED, environment, served

HELD = RECORDED["leases"]["items"][0]
SERVICES = ("provisioner", "weight-calculator", "lease-broker")


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with served() as (_, url):
        variables = environment(url)
        yield Api({name: variables[f"SLIPWAY_{name.upper().replace('-', '_')}_URL"] for name in SERVICES}, "token")


@pytest.mark.parametrize(
    ("place", "first", "below"),
    [
        (Place("pool", "linux"), "Pool linux: workers wait", {"config", "worker"}),
        (Place("config", CONFIG_ID), f"Launch config {CONFIG_ID}: workers wait", {"worker"}),
        (Place("worker", ID), f"Worker {ID}: running a task.", {"lease"}),
        (Place("lease-pool", "sim-a"), "Lease pool sim-a: paced", {"lease"}),
    ],
)
async def test_a_page_is_what_why_says_with_the_rows_below(
    api: Api, place: Place, first: str, below: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, "leases", {"items": [HELD]})
    page = await page_reader.read(api, place)
    assert page.sentences[0].startswith(first)
    assert any(sentence.startswith("Remedy: ") for sentence in page.sentences)
    assert {item.place.kind for listing in page.listings for item in listing.items} == below
    for listing in page.listings:
        assert {len(item.cells) for item in listing.items} <= {len(listing.titles)}


async def test_what_cannot_be_read_is_the_text_of_its_page(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = await page_reader.read(api, Place("pool", "mac"))
    assert gone.sentences[0] == "There is no pool 'mac'."
    away = await page_reader.read(Api(dict.fromkeys(SERVICES, NOWHERE)), Place("pool", "linux"))
    assert away.sentences[0].startswith(f"the provisioner at {NOWHERE} is unavailable")
    monkeypatch.setitem(ANSWERS, "workers", {"things": []})
    strange = await page_reader.read(api, Place("pool", "linux"))
    assert strange.sentences[0].endswith(
        "not that of a Slipway service of this version: Object missing required field `items`"
    )


async def test_keys_open_a_page_and_a_pause_holds_the_screen(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "readyz", {"ready": True, "reasons": []})
    changed, ended = asyncio.Event(), asyncio.Event()
    async with fetcher(api.urls, api.headers) as fetch:
        watch = Watch(fetch, title="top", interval_seconds=0.05)
        running = asyncio.create_task(watch.run())
        await until(lambda: watch.complete)
        async with Browser(watch, api, changed=changed.set, end=ended.set) as browser:

            def screen() -> str:
                return "\n".join(line.plain for line in browser.lines(120, 40))

            assert "? keys  q quit" in screen()
            browser.press("down")
            browser.press("enter")
            await until(lambda: "Pool linux: workers wait" in screen())
            browser.press("p")
            held = screen()
            assert "PAUSED at " in held
            seen = watch.snapshot().now
            await until(lambda: watch.snapshot().now > seen)
            assert screen() == held
            browser.press("/")
            browser.press("q")
            assert not ended.is_set()
            browser.press("escape")
            browser.press("q")
            assert ended.is_set()
            assert changed.is_set()
        running.cancel()
        await asyncio.wait({running})
