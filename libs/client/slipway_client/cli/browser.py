"""The screen as keys change it: navigation, the pause, and the page that is open."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, Self

from rich.text import Text

from slipway_client.cli import page_reader
from slipway_client.cli.watching import Watch
from slipway_client.transport.http import Api
from slipway_client.view import pages
from slipway_client.view.navigation import START, Place, pressed
from slipway_client.view.pages import Page
from slipway_client.view.screen import Drawn
from slipway_client.view.snapshot import Snapshot

REFRESH_SECONDS: Final = 2.0
QUIT: Final = frozenset("qQ")


class Browser:
    """Context manager; reads the open page meanwhile, again and again unless the screen is paused. `changed` is called
    after each key and each page that was read, `end` when the user presses q."""

    def __init__(self, watch: Watch, api: Api, *, changed: Callable[[], object], end: Callable[[], object]) -> None:
        self._watch = watch
        self._api = api
        self._changed = changed
        self._end = end
        self._nav = START
        self._drawn = Drawn([])
        self._held: Snapshot | None = None  # while paused
        self._page: tuple[Place, Page] | None = None
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._reading = asyncio.create_task(self._read_pages())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})

    def press(self, key: str) -> None:
        if key in QUIT and not self._nav.typing:
            self._end()
            return
        before = self._nav.place
        self._nav = pressed(self._nav, key, self._drawn.rows, self._drawn.scroll_max)
        self._held = (self._held or self._watch.snapshot()) if self._nav.paused else None
        if self._nav.place != before:
            self._moved.set()
        self._changed()

    def lines(self, width: int, height: int) -> Sequence[Text]:
        page = self._page[1] if self._page is not None and self._page[0] == self._nav.place else None
        self._drawn = pages.draw(self._held or self._watch.snapshot(), self._nav, page, width, height)
        return self._drawn.lines

    async def _read_pages(self) -> None:
        while True:
            self._moved.clear()
            place = self._nav.place
            is_known = self._page is not None and self._page[0] == place
            if place.kind in page_reader.KINDS and not (self._nav.paused and is_known):
                self._page = place, await page_reader.read(self._api, place)
                self._changed()
            # Not wait_for, which forgets that it was cancelled if a key is pressed at that moment.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._moved.wait()
