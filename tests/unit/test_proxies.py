"""The Ingress of infra/proxies, which is not run, sets what the file for nginx sets, which is."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

PROXIES: Final = Path(__file__).parents[2] / "infra" / "proxies"
PREFIX: Final = "nginx.ingress.kubernetes.io/"


def directive(name: str) -> str:
    """Value of a directive that the file for nginx has once."""
    (found,) = re.findall(rf"^\s*{name} (.+?);", (PROXIES / "nginx.conf").read_text(), re.MULTILINE)
    return str(found)


def test_the_ingress_is_the_file_for_nginx() -> None:
    """Its host, service, limits and nothing else: any other annotation may change paths or addresses."""
    ingress: Any = yaml.safe_load((PROXIES / "ingress.yaml").read_text())
    assert ingress["metadata"]["annotations"] == {
        f"{PREFIX}proxy-body-size": directive("client_max_body_size"),
        f"{PREFIX}proxy-read-timeout": directive("proxy_read_timeout").removesuffix("s"),
    }
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == directive("server_name")
    assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]]
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/", "Prefix")
    assert directive("proxy_pass") == f"http://127.0.0.1:{path['backend']['service']['port']['number']}"
