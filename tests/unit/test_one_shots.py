"""Programs that run once before the services: their last line names the problem, without a stack trace."""

import importlib

import pytest

MODULES = {
    "migrate": "slipway_common.database.migrate",
    "topic_admin": "slipway_common.messaging.topic_admin",
    "healthcheck": "slipway_common.web.healthcheck",
}


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        (["migrate"], {}, "no service given; for example: python -m slipway_common.database.migrate provisioner"),
        (["migrate", "nothing"], {}, "not installed here: nothing"),
        (["migrate", "provisioner"], {}, "SLIPWAY_DATABASE_URL is not set; set it, or SLIPWAY_DATABASE_URL_FILE"),
        (
            ["migrate", "provisioner"],
            {"SLIPWAY_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/d", "SLIPWAY_SECRETS_IN_ENVIRONMENT": "yes"},
            "provisioner: cannot use the database at SLIPWAY_DATABASE_URL",
        ),
        (
            ["migrate", "provisioner"],
            {"SLIPWAY_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/d"},
            "SLIPWAY_DATABASE_URL holds a secret, which an environment shows to others; write it into a file",
        ),
        (["topic_admin"], {}, "SLIPWAY_KAFKA is not set; set it, or SLIPWAY_KAFKA_FILE"),
        (["topic_admin"], {"SLIPWAY_KAFKA": "127.0.0.1:1"}, "the broker of SLIPWAY_KAFKA=127.0.0.1:1 cannot be used"),
        (["healthcheck"], {}, "SLIPWAY_PORT must be set to the service's port"),
        (["healthcheck"], {"SLIPWAY_PORT": "1"}, "port 1 does not answer: "),
    ],
)
def test_the_problem_is_printed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    environment: dict[str, str],
    message: str,
) -> None:
    for name in ("SLIPWAY_DATABASE_URL", "SLIPWAY_KAFKA", "SLIPWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(MODULES[words[0]]).main()
    printed = f"{capsys.readouterr().err}{ended.value.code}"
    assert ended.value.code not in (0, None)
    assert message in printed
    assert "hunter2" not in printed
