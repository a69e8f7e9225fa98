"""Packages of Terraform for tests: an altered program is refused, and missing ones make no failure."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from slipway_local.terraform import packages
from tests.support import terraform
from tests.tools import terraform_packages


def test_an_altered_program_is_refused(tmp_path: Path) -> None:
    altered = msgspec.structs.replace(packages.TERRAFORM, path=tmp_path / "terraform")
    altered.path.write_bytes(b"#!/bin/sh\n")
    with pytest.raises(terraform_packages.WrongDigest, match="expected a29d0929"):
        terraform_packages.check(altered)


def test_an_altered_program_ends_the_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install() -> None:
        raise terraform_packages.WrongDigest("terraform: SHA-256 is 0")

    monkeypatch.setattr(terraform_packages, "install", install)
    assert terraform_packages.main() == 1
    assert "WRONG PROGRAM" in capsys.readouterr().err


def test_missing_packages_are_a_warning(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the index the rest of the suite runs, and says what was left out."""

    def install() -> None:
        raise subprocess.CalledProcessError(2, "uv")

    monkeypatch.setattr(terraform_packages, "install", install)
    assert terraform_packages.main() == 0
    assert "will be skipped" in capsys.readouterr().err


def test_tests_are_skipped_without_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "READY", tmp_path / ".ready")
    with pytest.raises(pytest.skip.Exception, match="NO TERRAFORM"):
        terraform.installed()
