"""What runs once before the services: its last line says what is wrong and where, instead of a stack trace."""

import importlib

import pytest


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (["migrate"], {}, "no service is named; write for example: python -m slipway_common.migrate provisioner"),
        (["migrate", "nothing"], {}, "not installed here: nothing"),
        (["migrate", "provisioner"], {}, "SLIPWAY_DATABASE_URL is not set; set it, or SLIPWAY_DATABASE_URL_FILE"),
        (
            ["migrate", "provisioner"],
            {"SLIPWAY_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/d"},
            "provisioner: the database of SLIPWAY_DATABASE_URL cannot be used",
        ),
        (["topic_admin"], {}, "SLIPWAY_KAFKA is not set; set it, or SLIPWAY_KAFKA_FILE"),
        (["topic_admin"], {"SLIPWAY_KAFKA": "127.0.0.1:1"}, "the broker of SLIPWAY_KAFKA=127.0.0.1:1 cannot be used"),
        (["healthcheck"], {}, "SLIPWAY_PORT has to name the service's port"),
        (["healthcheck"], {"SLIPWAY_PORT": "1"}, "port 1 does not answer: "),
    ],
)
def test_what_is_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    environment: dict[str, str],
    said: str,
) -> None:
    for name in ("SLIPWAY_DATABASE_URL", "SLIPWAY_KAFKA", "SLIPWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"slipway_common.{words[0]}").main()
    told = f"{capsys.readouterr().err}{ended.value.code}"
    assert ended.value.code not in (0, None)
    assert said in told
    assert "hunter2" not in told
