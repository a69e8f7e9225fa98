"""The services' HTTP APIs, and their refusals as sentences: what was asked, what is wrong, what to do."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from slipway_client.foreign import printable

if TYPE_CHECKING:
    import httpx2  # a quarter of what starting takes: imported with the first request

SERVICES: Final = {
    "provisioner": "http://127.0.0.1:7301",
    "weight-calculator": "http://127.0.0.1:7302",
    "lease-broker": "http://127.0.0.1:7303",
}
KAFKA: Final = "127.0.0.1:9092"
ADVICE: Final = {
    "no-token": "set SLIPWAY_TOKEN_FILE or SLIPWAY_TOKEN (`ps` shows a --token); `slipway token create` makes a token",
    "unknown-token": "check SLIPWAY_TOKEN_FILE or SLIPWAY_TOKEN, and the services' tokens file",
    "scope-missing": "use a token with that scope; `slipway token create --scope …` makes one",
    "unavailable": "try again in a moment",
    "starting": "`slipway doctor` says what it waits for",
    "wrong-config-state": "`slipway lc ls` lists those that exist, with their states",
    "unknown-decision": "`slipway pool show POOL` lists a pool's last ones",
    "unknown-target": "`slipway pool ls` and `slipway lc ls` show pools and accounts",
}


class Failed(Exception):
    """A service or Kafka cannot be reached, or said no. The text is for people; `slug` and `status` are a service's
    refusal, and empty when none has answered. `exit_code` is what a command ends with."""

    exit_code = 1

    def __init__(self, text: str, slug: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.slug = slug
        self.status = status


class Api:
    """Where one deployment is, and its services for one caller. `topic_prefix` stands before every topic's name."""

    def __init__(
        self,
        urls: Mapping[str, str],
        token: str = "",
        *,
        kafka: str = KAFKA,
        topic_prefix: str = "",
        timeout_seconds: float = 30.0,
    ) -> None:
        self.urls = {service: url.rstrip("/") for service, url in urls.items()}
        self.kafka = kafka
        self.topic_prefix = topic_prefix
        self.timeout_seconds = timeout_seconds
        self.token = token
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    @cached_property
    def _client(self) -> "httpx2.Client":
        import httpx2

        # The services are our own: no proxy of the environment stands between.
        return httpx2.Client(headers=self.headers, timeout=self.timeout_seconds, trust_env=False)

    def get(self, service: str, path: str, **parameters: Any) -> Any:
        return self._ask("GET", service, path, parameters)

    def put(self, service: str, path: str, body: Any, **parameters: Any) -> Any:
        return self._ask("PUT", service, path, parameters, body)

    def post(self, service: str, path: str, body: Any) -> Any:
        return self._ask("POST", service, path, {}, body)

    def patch(self, service: str, path: str, body: Any) -> Any:
        return self._ask("PATCH", service, path, {}, body)

    def delete(self, service: str, path: str) -> Any:
        return self._ask("DELETE", service, path, {})

    def _ask(self, method: str, service: str, path: str, parameters: Mapping[str, Any], body: Any = None) -> Any:
        import httpx2

        url = self.urls[service] + path
        given = {name: value for name, value in parameters.items() if value is not None}
        try:
            answer = self._client.request(method, url, params=given, json=body)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            where = f"--{service} or SLIPWAY_{service.upper().replace('-', '_')}_URL"
            reason = f"the {service} at {self.urls[service]} does not answer: {error}"
            raise Failed(f"{reason}\nIs it running? {where} says where it is.") from error
        if answer.is_success:
            return _json(answer)
        raise _refusal(method, url, answer)


def path(*parts: str) -> str:
    """A path of these parts; an id may hold anything."""
    return "".join("/" + quote(part, safe="") for part in parts)


def _json(answer: "httpx2.Response") -> Any:
    if not answer.content:
        return None
    try:
        return answer.json()
    except ValueError as error:
        raise Failed(f"{answer.request.url} answered something other than JSON: is it a Slipway service?") from error


def _refusal(method: str, url: str, answer: "httpx2.Response") -> Failed:
    """A problem+json body as lines; any other body is not shown, since it may be a page."""
    refused = f"{method} {url} was refused ({answer.status_code}): "
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "title" not in problem:
        reason = printable(answer.reason_phrase) or "no reason given"
        return Failed(refused + reason, status=answer.status_code)
    lines = [": ".join(str(problem[part]) for part in ("title", "detail") if problem.get(part))]
    for entry in problem.get("errors", []):
        lines.append("  " + ": ".join(str(entry[part]) for part in ("where", "path", "reason") if entry.get(part)))
    slug = str(problem.get("type", "")).removeprefix("urn:slipway:problem:")
    if slug in ADVICE:
        lines.append(ADVICE[slug])
    # That a name is unknown is said in words alone; which request was refused helps with the rest.
    before = "" if slug.startswith("unknown-") and slug != "unknown-token" else refused
    return Failed(before + "\n".join(map(printable, lines)), slug, answer.status_code)
