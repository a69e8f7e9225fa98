"""Stand-ins for the services of the command."""

from collections.abc import Iterator

import pytest

from tests.support.cli_services import Services
from tests.support.recorded import serving


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Services, str]]:
    services = Services()
    with serving(services.app) as url:
        yield services, url


@pytest.fixture
def services(server: tuple[Services, str]) -> Services:
    server[0].reset()
    return server[0]


@pytest.fixture
def url(server: tuple[Services, str]) -> str:
    return server[1]
