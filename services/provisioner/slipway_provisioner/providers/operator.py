"""Operator's settings of providers: which may be declared, and the files, executables and endpoints that they use.

A declaration comes from a token, not from the operator. So it picks an entry and a credential by name, and never states
a path, a command or a URL that this service would open with its own rights.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, cast

import msgspec

from slipway_api.events.worker import Scope
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.operator import DEFAULT_ENTRY, ENTRY, CredentialOfOperator, OfProvider, OperatorSettings
from slipway_provisioner.providers.port import OutcomeUnknown, Provider, Refused

NAMED: Final = "name"
"""Key of a declared credential that picks one of the operator's."""
NOT_PERMITTED: Final = "ProviderNotPermitted"


class NotPermitted(ValueError):
    """A declaration asks for what the operator's settings do not have; the text is the problem and its remedy."""


class UnusableSettings(ValueError):
    """Operator's settings that no installed provider can use; the text names the place and the remedy."""


def permitted(providers: Mapping[str, Provider], settings: OperatorSettings | None) -> dict[str, Provider]:
    """Providers with the operator's settings; None permits those that run no commands. One that may not be declared
    still lists and terminates the machines that it has. Raises UnusableSettings."""
    if settings is None:
        settings = {name: OfProvider() for name, provider in providers.items() if not provider.runs_commands}
    for name, own in settings.items():
        if name not in providers:
            raise UnusableSettings(f"no provider {name} is installed; write some of {', '.join(sorted(providers))}")
        _check_entries(name, own, providers[name])
    found = {name: PermittedProvider(name, provider, settings.get(name)) for name, provider in providers.items()}
    return cast("dict[str, Provider]", found)


def running_commands(providers: Mapping[str, Provider]) -> list[str]:
    """Names of the providers that may be declared and run commands on this host."""
    return sorted(
        name
        for name, provider in providers.items()
        if isinstance(provider, PermittedProvider) and provider.declarable and provider.provider.runs_commands
    )


class PermittedProvider:
    """Provider that sees every account with the operator's settings that its declaration names. Attributes are those of
    the provider; of its methods none sees an account as it was declared."""

    def __init__(self, name: str, provider: Provider, settings: OfProvider | None) -> None:
        self.provider = provider
        self._name = name
        self._settings = settings
        self.declarable = settings is not None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.provider, name)
        return self._resolving(found) if inspect.ismethod(found) else found

    def problem(self, account_settings: Mapping[str, Any], region: str) -> str:
        try:
            return self.provider.problem(self._merged(account_settings, declaring=True), region)
        except NotPermitted as error:
            return str(error)

    def credential_problem(self, credential: Mapping[str, Any]) -> str:
        try:
            return self.provider.credential_problem(self._credential(credential))
        except NotPermitted as error:
            return str(error)

    def config_problem(self, account_settings: Mapping[str, Any], config_settings: Mapping[str, Any]) -> str:
        try:
            return self.provider.config_problem(self._merged(account_settings), config_settings)
        except NotPermitted as error:
            return str(error)

    def meaning(self, account_settings: Mapping[str, Any], code: str, message: str) -> Any:
        return self.provider.meaning(self._declarable(account_settings), code, message)

    async def create(self, account: Account, request: Any) -> Any:
        try:
            resolved = self.resolve(account)
        except NotPermitted as error:
            outcome = self.provider.failure(account, request.config, NOT_PERMITTED, Scope.CONFIG)
            raise Refused(outcome, f"account {account.id}: {error}") from None
        return await self.provider.create(resolved, request)

    def resolve(self, account: Account) -> Account:
        """An account with the operator's settings and credential that it names. Raises NotPermitted."""
        settings, credential = self._merged(account.settings), self._credential(account.credential)
        return msgspec.structs.replace(account, settings=settings, credential=credential)

    def _resolving(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            # A key or a link of an account whose entry is gone needs none of the operator's settings, but a call does.
            strict = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
            given = [self._seen(each, strict=strict) if isinstance(each, Account) else each for each in arguments]
            return method(*given, **named)

        return call

    def _seen(self, account: Account, *, strict: bool) -> Account:
        try:
            return self.resolve(account)
        except NotPermitted as error:
            if strict:
                raise OutcomeUnknown(f"account {account.id}: {error}") from None
            return msgspec.structs.replace(account, settings=self._declarable(account.settings), credential={})

    def _declarable(self, declared: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that a declaration itself may state: those that an earlier release stored are ignored."""
        return {key: value for key, value in declared.items() if key not in {ENTRY, *self.provider.operator_settings}}

    def _merged(self, declared: Mapping[str, Any], *, declaring: bool = False) -> dict[str, Any]:
        """Settings of an account, with those of its entry. Raises NotPermitted, also for a setting that only the
        operator may state; unless `declaring`, only if the entry has no other."""
        if self._settings is None:
            raise NotPermitted(
                f"provider {self._name} may not be declared here; the operator permits it in SLIPWAY_PROVIDERS"
            )
        name = declared.get(ENTRY, DEFAULT_ENTRY)
        entries = self._settings.entries
        if not isinstance(name, str) or (name not in entries and ENTRY in declared):
            raise NotPermitted(f"no {ENTRY} {name!r}{_choice(entries)} of provider {self._name} in SLIPWAY_PROVIDERS")
        entry = entries.get(name, {})
        stated = declared.keys() & self.provider.operator_settings
        # An earlier release has stored some: such an account goes on with those of its entry, and never without them.
        for key in sorted(stated if declaring else stated - entry.keys()):
            raise NotPermitted(
                f"{key} is a setting of the operator; write it into an entry of provider {self._name} in "
                f"SLIPWAY_PROVIDERS, and {ENTRY}: NAME of that entry here"
            )
        return {**self._declarable(declared), **entry}

    def _credential(self, declared: Mapping[str, Any]) -> dict[str, Any]:
        """A reference with the operator's credential that it names. Raises NotPermitted."""
        if not declared:
            return {}
        if NAMED in declared:
            known: Mapping[str, CredentialOfOperator] = self._settings.credentials if self._settings else {}
            if (found := known.get(declared[NAMED])) is None:
                raise NotPermitted(
                    f"no credential {declared[NAMED]!r}{_choice(known)} of provider {self._name} in SLIPWAY_PROVIDERS"
                )
            return dict(msgspec.to_builtins(found))
        if "role" not in declared:  # stored by an earlier release
            raise NotPermitted(
                "the credential is no name of the operator's; declare the account again with {name: NAME}"
            )
        source = {"source": self._credential(declared["source"])} if declared.get("source") else {}
        return {**declared, **source}


def resolve(providers: Mapping[str, Provider], account: Account) -> Account:
    """An account with the operator's settings that it names. Raises NotPermitted."""
    provider = providers[account.provider]
    assert isinstance(provider, PermittedProvider)
    return provider.resolve(account)


def _check_entries(name: str, own: OfProvider, provider: Provider) -> None:
    """Raise UnusableSettings unless entries have only settings that are the operator's."""
    known = provider.operator_settings
    for entry, settings in own.entries.items():
        for key in sorted(settings.keys() - known):
            listed = f"the operator's settings are {', '.join(sorted(known))}" if known else "it has none"
            raise UnusableSettings(f"{name}.entries.{entry}: {key} is declared by accounts; {listed}")


def _choice(known: Mapping[str, Any]) -> str:
    """Names that might have been meant."""
    return f"; write one of {', '.join(sorted(known))}, or have the operator add it to those" if known else ""
