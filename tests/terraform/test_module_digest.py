"""The guide's modules and the digest that its command prints, against what is checked before a run."""

import re
import subprocess
from pathlib import Path

from slipway_terraform.domain.module import needs
from slipway_terraform.runs.modules import module_digest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "terraform.md"


def test_the_command_of_the_guide_prints_the_digest(tmp_path: Path) -> None:
    """Also with what `terraform init` and git leave in a module, and names that a shell would split."""
    (command,) = re.findall(r"^\(cd worker .*?sha256sum\)$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    module = tmp_path / "worker"
    for path in ("main.tf", "a b.tf", ".terraform.lock.hcl", ".gitignore", "a/x", "a-b", "inner/.tflint.hcl"):
        (module / path).parent.mkdir(exist_ok=True, parents=True)
        (module / path).write_text(path)
    (module / "link.tf").symlink_to("main.tf")
    for folder in (".git", ".terraform", "inner/.terraform"):
        (module / folder).mkdir()
        (module / folder / "left-out").touch()
    printed = subprocess.run(("bash", "-c", command), cwd=tmp_path, capture_output=True, check=True, text=True)
    assert printed.stdout.split()[0] == module_digest(module)


def test_the_modules_of_the_guide_name_their_provider() -> None:
    """Without its source Terraform takes that of another namespace, which no account has."""
    modules = re.findall(r"^```text\n(terraform \{.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    found = [needs({"main.tf": text}) for text in modules]
    assert [(dict(each.sources), each.unsafe) for each in found] == [({"hcloud": "hetznercloud/hcloud"}, ())] * 2
