"""The services' HTTP APIs, and their refusals as sentences: what was asked, what is wrong, what to do."""

from collections.abc import Mapping
from typing import Any, Final

import httpx2

SERVICES: Final = {
    "provisioner": "http://127.0.0.1:7301",
    "weight-calculator": "http://127.0.0.1:7302",
    "lease-broker": "http://127.0.0.1:7303",
}
ADVICE: Final = {
    "no-token": "pass --token or set SLIPWAY_TOKEN; `slipway token create` makes a token",
    "unknown-token": "check SLIPWAY_TOKEN and the services' tokens file",
    "scope-missing": "use a token with that scope; `slipway token create --scope …` makes one",
    "unavailable": "try again in a moment",
}


class Failed(Exception):
    """A service cannot be reached or said no. The text is for people."""


class Api:
    """The services of one deployment, for one caller."""

    def __init__(self, urls: Mapping[str, str], token: str = "", *, timeout_seconds: float = 30.0) -> None:
        self.urls = {service: url.rstrip("/") for service, url in urls.items()}
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # The services are our own: no proxy of the environment stands between.
        self._client = httpx2.Client(headers=headers, timeout=timeout_seconds, trust_env=False)

    def get(self, service: str, path: str, **parameters: Any) -> Any:
        return self._ask("GET", service, path, parameters)

    def put(self, service: str, path: str, body: Any, **parameters: Any) -> Any:
        return self._ask("PUT", service, path, parameters, body)

    def post(self, service: str, path: str, body: Any) -> Any:
        return self._ask("POST", service, path, {}, body)

    def _ask(self, method: str, service: str, path: str, parameters: Mapping[str, Any], body: Any = None) -> Any:
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
        raise Failed(f"{method} {url} was refused ({answer.status_code}): {_refusal(answer)}")


def _json(answer: httpx2.Response) -> Any:
    if not answer.content:
        return None
    try:
        return answer.json()
    except ValueError as error:
        raise Failed(f"{answer.request.url} answered something other than JSON: is it a Slipway service?") from error


def _refusal(answer: httpx2.Response) -> str:
    """A problem+json body as lines; any other body is not shown, since it may be a page."""
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "title" not in problem:
        return answer.reason_phrase or "no reason given"
    lines = [": ".join(str(problem[part]) for part in ("title", "detail") if problem.get(part))]
    for entry in problem.get("errors", []):
        lines.append("  " + ": ".join(str(entry[part]) for part in ("where", "path", "reason") if entry.get(part)))
    slug = str(problem.get("type", "")).removeprefix("urn:slipway:problem:")
    if slug in ADVICE:
        lines.append(ADVICE[slug])
    return "\n".join(lines)
