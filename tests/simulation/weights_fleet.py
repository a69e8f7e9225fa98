"""Fleet of the weight-calculator's simulation: its launch configs take other images by revisions, as roll-outs do."""

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from slipway_api.events.launch_config import LaunchConfigCreated, LaunchConfigState
from slipway_api.events.worker import Scope, WorkerEvent
from tests.support.worlds import Fleet, Story

IMAGES: Final = ("linux-2", "linux-3", "linux-4")
FOREIGN: Final = (*IMAGES, "linux-9")  # the last one is never declared
MISNAMED: Final = 0.1  # fraction of workers whose image is not that of their config
SCOPED: Final = 0.2  # fraction of failures of an image that name it by their scope key
SLOW: Final = 0.25  # fraction of boots that take long
SLOW_SECONDS: Final = (200.0, 1200.0)
CHANGES: Final = (*["roll out"] * 3, *["leave"] * 4, *["return"] * 3, "pause", "archive", "correct")
TOGETHER: Final = 0.7  # fraction of the configs with the same image that a roll-out changes at once


class ImageStory(Story):
    """A story in which some workers run an image that their config does not declare."""

    def __init__(self, chance: Random, *configs: LaunchConfigCreated) -> None:
        self.chance = chance
        self._images: dict[str, str] = {}  # by worker id
        super().__init__(*configs)

    def fold(self, at: float, *events: WorkerEvent) -> None:
        super().fold(at, *map(self._with_image, events))

    def _with_image(self, event: WorkerEvent) -> WorkerEvent:
        chance, image = self.chance, self._images.get(event.worker_id)
        if image is None:
            image = chance.choice(FOREIGN) if chance.random() < MISNAMED else event.image_revision
            self._images[event.worker_id] = image
        changes: dict[str, Any] = {"image_revision": image}
        outcome = getattr(event, "outcome", None)
        if outcome is not None and outcome.scope is Scope.IMAGE and chance.random() < SCOPED:
            changes["outcome"] = replace(outcome, scope_key=chance.choice(FOREIGN))
        return replace(event, **changes)


class RollOutFleet(Fleet):
    """A fleet whose configs are rolled out, rolled back, paused, archived and declared again, while it launches.

    Workers of a replaced revision continue: they boot, claim and fail beside those of its successor.
    """

    def __init__(self, story: Story, configs: Sequence[LaunchConfigCreated], rng: Random) -> None:
        super().__init__(story, configs, rng)
        self.current = {c.name: c.launch_config_id for c in configs}
        self._booting_until: dict[str, float] = {}

    def _continue(self, worker_id: str) -> None:
        if self.workers[worker_id][0] == "starting":
            if worker_id not in self._booting_until:
                seconds = self.rng.uniform(*SLOW_SECONDS) if self.rng.random() < SLOW else 0.0
                self._booting_until[worker_id] = self.now + seconds
            if self.now < self._booting_until[worker_id]:
                return
        super()._continue(worker_id)

    def change(self, kinds: Sequence[str] = CHANGES) -> None:
        """Make one random change of launch configs, if it is possible."""
        rng, name = self.rng, self.rng.choice(sorted(self.current))
        known = self._known(self.current[name])
        others = [c for id_, c in sorted(self.configs.items()) if c.name == name and id_ != known.launch_config_id]
        kind = rng.choice(kinds)
        if kind == "roll out":
            self._roll_out(known.image_revision, rng.choice(IMAGES))
        elif kind == "leave" and (leaving := [c for c in others if c.state != "archived"]):
            self.declare(replace(rng.choice(leaving), state=rng.choice(["draining", "archived"])))
        elif kind == "return" and others:  # to an earlier image, even if its revision is archived or deleted
            archived = [c for c in others if c.state == "archived"]
            self._make_current(replace(rng.choice(archived or others), state="active"))
        elif kind == "pause":
            self.declare(replace(known, state="active" if known.state == "paused" else "paused"))
        elif kind == "archive":
            self.declare(replace(known, state="archived"))
        elif kind == "correct":
            self.declare(replace(known, image_revision=rng.choice(IMAGES)))

    def _roll_out(self, before: str, image: str) -> None:
        """Give a new image to configs that have the same one; the others keep it until later."""
        for config_id in sorted(self.current.values()):
            known = self._known(config_id)
            if known.image_revision == before != image and self.rng.random() < TOGETHER:
                new = {"launch_config_id": f"{known.name}@{image}", "image_revision": image, "state": "active"}
                self._make_current(replace(known, **new))

    def _make_current(self, state: LaunchConfigState) -> None:
        """Declare the revision that its name now stands for; the one before launches on as a fallback, or drains."""
        before = self._known(self.current[state.name])
        self.current[state.name] = state.launch_config_id
        self.declare(replace(state, current=True))
        if before.launch_config_id != state.launch_config_id and before.state == "active":
            self.declare(replace(before, current=False, state=self.rng.choice(["active", "draining"])))

    def _known(self, config_id: str) -> Any:
        return self.configs[config_id]
