"""Operator's settings of providers: a declaration picks entries and credentials by name, and states none of them."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from slipway_api.events.worker import Scope
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.operator import OfProvider, OperatorSettings, operator_settings
from slipway_provisioner.main import build
from slipway_provisioner.providers.installed import installed
from slipway_provisioner.providers.operator import UnusableSettings, permitted, resolve
from slipway_provisioner.providers.port import CreateRequest, OutcomeUnknown, Provider, Refused
from slipway_provisioner.settings import Settings
from tests.support.cloud import Cloud
from tests.support.providers import provider_settings, request
from tests.support.provisioner import KEY

SETTINGS: Final[dict[str, Any]] = {
    "cloud": {
        "entries": {"default": {"url": "http://cloud"}, "other": {"url": "http://other"}},
        "credentials": {"ci": {"environment": "CI"}, "web": {"web_identity": {"role": "r", "token_file": "/t"}}},
    },
    "bare": {},
}


class Seeing(Cloud):
    """Provider that keeps the accounts that it is given."""

    runs_commands = False
    operator_settings = frozenset({"url", "command"})

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Account] = []

    def credential_problem(self, credential: Mapping[str, Any]) -> str:
        return ""

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        self.seen.append(account)
        return ""

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str]:
        self.seen.append(account)
        return []

    async def identity(self, account: Account) -> str:
        self.seen.append(account)
        return account.id


class Running(Seeing):
    """Provider that says nothing of commands, as one from outside may."""

    runs_commands = Provider.runs_commands


def settings() -> OperatorSettings:
    found = operator_settings(SETTINGS)
    assert found is not None
    return found


def account(settings: Mapping[str, Any] | None = None, credential: Mapping[str, Any] | None = None) -> Account:
    return Account(
        id="a",
        deployment="d",
        provider="cloud",
        region="r",
        identity="i",
        lease_pool_id="l",
        settings=settings or {},
        credential=credential or {},
    )


def known() -> tuple[Seeing, Provider]:
    """A provider, and what a declaration may do with it."""
    seeing = Seeing()
    return seeing, permitted({"cloud": seeing, "bare": Seeing()}, settings())["cloud"]


def test_by_default_what_runs_no_commands_is_permitted() -> None:
    """Also a provider from outside that does not say so runs some."""
    found = permitted(installed(provider_settings()) | {"outside": Running()}, None)
    refused = {name for name, provider in found.items() if "may not be declared here" in provider.problem({}, "r")}
    assert refused == {"process", "terraform", "outside"}


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({}, ""),
        ({"entry": "default", "colour": "red"}, ""),
        (
            {"url": "http://169.254.169.254"},
            "url is a setting of the operator; write it into an entry of provider cloud",
        ),
        ({"command": ["sh"]}, "command is a setting of the operator"),
        ({"entry": "none"}, "no entry 'none'; write one of default, other"),
        ({"entry": ["other"]}, "no entry ['other']"),
    ],
)
def test_a_declaration_names_an_entry(declared: dict[str, Any], words: str) -> None:
    problem = known()[1].problem(declared, "r")
    assert words in problem if words else problem == ""


@pytest.mark.parametrize(
    ("credential", "words"),
    [
        ({}, ""),
        ({"name": "ci"}, ""),
        ({"role": "r", "source": {"name": "web"}}, ""),
        ({"name": "root"}, "no credential 'root'; write one of ci, web"),
        ({"role": "r", "source": {"name": "root"}}, "no credential 'root'"),
        ({"file": "/run/secrets/registration_key"}, "declare the account again with {name: NAME}"),
    ],
)
def test_a_declaration_names_a_credential(credential: dict[str, Any], words: str) -> None:
    problem = known()[1].credential_problem(credential)
    assert words in problem if words else problem == ""


async def test_calls_get_what_the_operator_states() -> None:
    """Neither the names, nor what an earlier release has stored of a declaration."""
    seeing, provider = known()
    stored = account({"entry": "other", "url": "http://evil", "colour": "red"}, {"name": "ci"})
    await provider.create(stored, request())
    await provider.identity(stored)
    provider.console(stored, "b", "i")
    assert [(seen.settings, seen.credential) for seen in seeing.seen] == [
        ({"colour": "red", "url": "http://other"}, {"environment": "CI"})
    ] * 3
    assert resolve({"cloud": provider}, stored).settings["url"] == "http://other"


async def test_an_account_whose_entry_is_gone_makes_no_call() -> None:
    """A launch is refused and charged to its config, a listing stays unknown; keys and links need no entry."""
    seeing, provider = known()
    gone = account({"entry": "gone", "url": "http://evil"})
    with pytest.raises(Refused, match="ProviderNotPermitted: account a: no entry 'gone'") as refused:
        await provider.create(gone, request())
    assert refused.value.outcome.scope is Scope.CONFIG
    with pytest.raises(OutcomeUnknown, match="no entry 'gone'"):
        await provider.identity(gone)
    with pytest.raises(OutcomeUnknown, match="command is a setting of the operator"):
        await provider.identity(account({"command": ["sh"]}))
    with pytest.raises(OutcomeUnknown, match="declare the account again"):
        await provider.identity(account(credential={"file": "/proc/self/environ"}))
    provider.console(gone, "b", "i")
    assert [seen.settings for seen in seeing.seen] == [{}]


async def test_no_method_sees_an_account_as_it_was_declared() -> None:
    """Whatever methods the port gets: all of them pass the same place."""
    _, provider = known()
    own = {"resolve", "problem", "credential_problem", "config_problem", "meaning", "create"}
    methods = {name for name, member in inspect.getmembers(Provider, inspect.isfunction) if not name.startswith("_")}
    assert methods > {"pages", "poll", "terminate", "capacity_key"}
    for name in sorted(methods - own):
        assert getattr(provider, name).__wrapped__, name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "cloud: {entries: {default: {colour: red}}}",
            "cloud.entries.default: colour is declared by accounts",
        ),
        ("fog", "no provider fog is installed; write some of bare, cloud"),
    ],
)
def test_settings_that_nothing_can_use_are_refused(text: str, words: str) -> None:
    given = Settings(database_url="", kafka="", registration_keys=KEY, providers=text).operator_settings()
    with pytest.raises(UnusableSettings, match=words):
        permitted({"cloud": Seeing(), "bare": Seeing()}, given)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cloud: {entrys: {}}", "entrys"),
        ("cloud: [a", "line "),
        ("cloud: {credentials: {ci: {}}}", "write exactly one of environment, file and web_identity"),
        ("cloud: {credentials: {ci: {file: a}}}", "credentials"),
    ],
)
def test_a_text_that_is_no_settings_is_refused_at_start(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(database_url="", kafka="", registration_keys=KEY, providers=text)


@pytest.mark.parametrize("text", ["aws, simulated", "[aws, simulated]", "aws: {}\nsimulated:\n"])
def test_names_alone_permit_providers(text: str) -> None:
    found = Settings(database_url="", kafka="", registration_keys=KEY, providers=text).operator_settings()
    assert list(found or {}) == ["aws", "simulated"]


def test_the_default_is_none() -> None:
    assert Settings(database_url="", kafka="", registration_keys=KEY).operator_settings() is None


@pytest.mark.parametrize(
    ("where", "given", "starts"),
    [
        ("environment: CI_AWS", {}, False),
        ("environment: CI_AWS", {"secrets_in_environment": True}, True),
        ("file: /run/secrets/aws", {}, True),
    ],
)
def test_credentials_are_files(where: str, given: dict[str, Any], starts: bool) -> None:
    """Those of accounts, too, but for a demo."""
    providers = f"aws:\n  credentials:\n    ci: {{{where}}}\n"
    settings = Settings(database_url="", kafka="", registration_keys=KEY, providers=providers, **given)
    if starts:
        build(settings)
        return
    with pytest.raises(UnusableSettings, match=r"aws\.credentials\.ci .*; write them into a file .* `file: PATH`"):
        build(settings)


@pytest.mark.parametrize(
    ("given", "starts"),
    [
        ({"providers": "simulated"}, True),
        ({"providers": "simulated,process"}, False),
        ({"providers": "process", "commands_as_service": True}, True),
        ({"providers": "process", "child_user": "daemon"}, True),
    ],
)
def test_commands_run_as_the_service_only_if_the_operator_says_so(given: dict[str, Any], starts: bool) -> None:
    """As its user they read its keys and passwords, so that there is a notice while they may."""
    if "child_user" in given and os.geteuid() != 0:
        pytest.skip("becomes another user")
    settings = Settings(database_url="", kafka="", registration_keys=KEY, **given)
    if not starts:
        with pytest.raises(UnusableSettings, match=r"process would run commands .*; set SLIPWAY_CHILD_USER"):
            build(settings)
        return
    ((notice, _),) = build(settings)._start_notices
    assert notice.applies == settings.commands_as_service


def test_names_alone_are_providers_without_settings() -> None:
    """With commas between them, or in a list. Nothing stands for the default."""
    assert operator_settings("a, b,") == operator_settings(["a", "b"]) == {"a": OfProvider(), "b": OfProvider()}
    assert operator_settings("") is None
    assert operator_settings(None) is None
