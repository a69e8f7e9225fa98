"""Console output of a machine as it is stored: its last lines, without user data and secrets."""

import base64
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.alert import AlertRaised
from slipway_api.limits import LINE
from slipway_common.base.redaction import GONE
from slipway_provisioner.domain.consoles import (
    ATTEMPTS_MAX,
    BYTES_MAX,
    LINES_MAX,
    ConsoleOutput,
    delay_seconds,
    kept,
    none_found,
    raised,
    resolved,
)
from slipway_provisioner.domain.registration import RegistrationKeys
from tests.support.provisioner import KEY

SECRET = RegistrationKeys(KEY).secret("0192f0c1-0000-7000-8000-000000000000")
USER_DATA = ('{"batch_id":"b-1","register_url":"http://slipway:7301","secret":"', '","settings":{"team":"ci"}}')
ERROR = "slipway-worker: cannot open libssl.so.3"
CONSOLE = ConsoleOutput(
    image_revision="ami-1",
    account_id="a",
    pool_id="p",
    launch_config_id="c@1",
    batch_id="b",
    worker_id="w",
    instance_id="i-1",
    reason="did not register in time",
)


def shown(text: str) -> tuple[str, ...]:
    return kept(text, secret=SECRET, user_data=USER_DATA)


def wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width, drop_whitespace=False))


def as_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


#          text that a machine prints besides its error
ECHOES = [
    SECRET.join(USER_DATA),
    wrapped(SECRET.join(USER_DATA), 80),
    wrapped(SECRET.join(USER_DATA), 23),
    f"+ export TOKEN={SECRET}",
    f"{SECRET[:20]}\n{SECRET[20:40]}\r\n{SECRET[40:]}",
    f"\x1b[1m{SECRET[:30]}\x1b[0m{SECRET[30:]}",
    f"\x1b]0;title\x07{SECRET[:30]}\x00\x08{SECRET[30:]}",
    wrapped(as_base64("xx" + SECRET.join(USER_DATA)), 76),
    wrapped(as_base64("#!/bin/sh\necho " + SECRET), 20),
    wrapped(SECRET, 5),
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc123\n-----END RSA PRIVATE KEY-----",
    "https://user:hunter22@example.com/?signature=abcdef",
]


@pytest.mark.parametrize("echo", ECHOES)
def test_neither_user_data_nor_secrets_are_kept(echo: str) -> None:
    """However the console shows them. What the machine has printed besides them stays."""
    lines = shown(f"Booting\n{echo}\n{ERROR}\n")
    text = "".join("".join(lines).split())
    assert (lines[0], lines[-1]) == ("Booting", ERROR)
    encoded = [as_base64("x" * n + SECRET)[4:-4] for n in range(3)]
    for private in (SECRET, *encoded, "register_url", "hunter22", "abcdef", "MIIEow", "abc123"):
        pieces = [private[at : at + 12] for at in range(max(1, len(private) - 11))]
        assert not [piece for piece in pieces if piece in text]


@given(st.integers(8, len(SECRET) - 8))
def test_parts_of_a_secret(length: int) -> None:
    """The console may be read while the machine prints, begins anywhere, and has other words between two lines."""
    first, last = SECRET[:length], SECRET[length:]
    assert shown(f"{ERROR}\nsecret is {first}") == (ERROR, GONE)
    assert shown(f"{last} is it\n{ERROR}") == (GONE, ERROR)
    assert shown(f"[1.0] init: {first}\n[1.1] init: {last}\n{ERROR}") == (GONE, ERROR)
    assert shown(f"{first} a\n{first} b\nBooting\n{ERROR}") == (GONE, "Booting", ERROR), "once for lines in a row"


def test_a_short_end_of_a_secret_may_be_there_by_chance() -> None:
    assert shown(f"{ERROR}\nat {SECRET[-7:]}") == (ERROR, f"at {SECRET[-7:]}")
    assert shown(f"{ERROR}\nat {SECRET[-8:]}") == (ERROR, GONE)


@given(st.text(max_size=3000))
def test_what_is_kept_is_bounded_and_printable(text: str) -> None:
    lines = shown(text * 3)
    assert len(lines) <= LINES_MAX
    assert sum(len(line.encode()) + 1 for line in lines) <= BYTES_MAX
    assert all(line and line.isprintable() for line in lines)


def test_the_last_lines_are_kept() -> None:
    """In their order: the cause is at the end."""
    lines = shown("\n".join(f"line {n}" for n in range(100)))
    assert lines == tuple(f"line {n}" for n in range(60, 100))
    assert len(shown("\n".join(f"{n} " + "x " * 150 for n in range(100)))) < LINES_MAX
    assert shown("") == shown(" \n\x1b[0m\n") == shown(SECRET) == ()
    assert shown("y" * 300) == (LINE.cut("y" * 300),)


@pytest.mark.parametrize(("length", "fits"), [(127, True), (128, False)])
def test_as_many_bytes_are_kept_as_fit_with_their_ends_of_lines(length: int, fits: bool) -> None:
    """After 31 lines of 128 bytes each, a last one of as many."""
    newest = ["y" * 127 for _ in range(31)]
    assert len(shown("\n".join(["x" * length, *newest]))) == 31 + fits


def test_a_template_of_user_data_that_is_traced() -> None:
    """A shell that traces its commands prints the lines of the script."""
    script = ("#!/bin/sh\nexport QUEUE=https://queue.example.com/team\nslipway-worker run\n",)
    text = f"+ export QUEUE=https://queue.example.com/team\n+ slipway-worker run\n{ERROR}"
    assert kept(text, secret=SECRET, user_data=script) == (GONE, ERROR)


@pytest.mark.parametrize(
    ("line", "shown_line"),
    [("twelve-chars", GONE), ("+ twelve-chars", GONE), ("twelve-char", "twelve-char")],
)
def test_twelve_characters_of_user_data_are_an_echo(line: str, shown_line: str) -> None:
    script = ("twelve-chars\nsomething else\n",)
    assert kept(f"{line}\n{ERROR}", secret=SECRET, user_data=script) == (shown_line, ERROR)


def test_a_long_text_is_read_quickly() -> None:
    """EC2 returns 64 kB, of any characters."""
    assert shown("a" * 65_536)[0].startswith("aaa")
    assert shown((SECRET[:-1] + " ") * 1000) == ()


def test_attempts() -> None:
    """Within a quarter of an hour, for which EC2 keeps the output of a terminated instance several times over."""
    delays = [delay_seconds(attempt, 60) for attempt in range(1, ATTEMPTS_MAX)]
    assert (delays, sum(delays)) == ([60, 120, 240, 480], 900)


def test_the_alert_and_its_resolution() -> None:
    """It holds the lines, or says that there are none."""
    alert = raised(CONSOLE, ["Booting", "Starting", ERROR], "")
    assert alert == AlertRaised(
        dedup_key="provisioner/never-registered/ami-1",
        subject_kind="image",
        subject_id="ami-1",
        kind="never-registered",
        summary=f"a machine of image ami-1 never registered: did not register in time; it printed last: {ERROR}",
        effect="a machine that does not register takes no task, and costs money until it is terminated",
        doing="fetches the console output of one machine of an image, and stores it here and for `slipway why`",
        command="slipway why image/ami-1",
        cause="did not register in time",
        severity="notice",
        evidence=("worker w, instance i-1 of a, launch config c@1",),
        console=("Booting", "Starting", ERROR),
    )
    ended = resolved("ami-1")
    assert (ended.dedup_key, ended.subject_kind, ended.subject_id) == (alert.dedup_key, "image", "ami-1")
    assert ended.summary == "image ami-1 has registered since, or is no longer in use"


#    attempts, the error of the last one, the text
NONE_FOUND = [
    (1, "", "it had none after 1 attempt"),
    (5, "", "it had none after 5 attempts"),
    (1, "denied", "its console output could not be read in 1 attempt: denied"),
    (2, "denied", "its console output could not be read in 2 attempts: denied"),
]


@pytest.mark.parametrize(("attempts", "error", "text"), NONE_FOUND)
def test_an_alert_without_console_output_says_why(attempts: int, error: str, text: str) -> None:
    assert none_found(attempts, error) == text
    without = raised(CONSOLE, [], text)
    assert without.console == ()
    assert without.summary.endswith(f"did not register in time; {text}")
