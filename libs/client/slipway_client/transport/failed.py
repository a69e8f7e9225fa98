"""Services that are asked, and their refusals; without what only a request needs, so that `slipway` starts fast."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from slipway_api.problems import Problem

SERVICES: Final = {
    "provisioner": "http://127.0.0.1:7301",
    "weight-calculator": "http://127.0.0.1:7302",
    "lease-broker": "http://127.0.0.1:7303",
}
KAFKA: Final = "127.0.0.1:9092"


class Failed(Exception):
    """A service or Kafka is unavailable, or refused a request. The text is for people; `slug`, `status`, `path` and
    `problem`, the document of the refusal, are those of a refused request, and empty if there was no answer.
    `exit_code` is the exit code of the command."""

    exit_code = 1

    def __init__(
        self, text: str, slug: str = "", status: int = 0, *, path: str = "", problem: "Problem | None" = None
    ) -> None:
        super().__init__(text)
        self.slug = slug
        self.status = status
        self.path = path
        self.problem = problem


class InvalidDeclaration(Failed):
    """A service refused a declaration as invalid, as a file would be."""

    exit_code = 2
