"""Benchmark of EC2 machines: figures per machine, its claims, and cells by name."""

import pytest

from bench.ec2.__main__ import CELLS, ROUNDS, chosen, numbers
from bench.ec2.bare import parameters
from bench.ec2.figures import Comparison, Played, Results, claims, compared, lines
from bench.ec2.provisioner import declaration
from bench.ec2.side import Cell, Sample
from bench.spread import Spread
from slipway_provisioner.providers.aws.body import committed, run_instances
from slipway_provisioner.providers.aws.settings import Ec2Settings, LaunchSettings

CALLS = {"RunInstances": 2, "DescribeInstances": 4}


def rounds(*cpu_ms: float) -> list[Played]:
    """Rounds with so much CPU time, each after a memory of 1 MB more."""
    return [Played(Sample(each, 1024.0 * number), CALLS) for number, each in enumerate(cpu_ms, 1)]


def comparison(*ratios: float, machines: int = 4) -> Comparison:
    cell = Cell(2, machines // 2)
    return compared(cell, rounds(50, *(10.0 for _ in ratios)), rounds(500, *(10 * ratio for ratio in ratios)))


def test_figures_are_per_machine_and_without_the_warm_up() -> None:
    found = comparison(1.5, 1.25, 1.75)
    assert found.ratio == Spread(1.25, 1.5, 1.75)
    assert found.bare.cpu_ms == Spread(2.5, 2.5, 2.5)
    assert found.provisioner.cpu_ms == Spread(3.125, 3.75, 4.375)
    assert found.provisioner.calls == 1.5
    assert found.provisioner.calls_by_operation == {"DescribeInstances": 1.0, "RunInstances": 0.5}
    assert (found.provisioner.memory_kb, found.provisioner.peak_mb) == (256.0, 4.0)


def test_ratios_are_those_of_the_same_round() -> None:
    """The machine may be slower in one round than in another."""
    assert compared(Cell(1, 1), rounds(1, 10, 100), rounds(1, 15, 150)).ratio == Spread(1.5, 1.5, 1.5)


@pytest.mark.parametrize(
    ("ratios", "machines", "judged"),
    [
        ((1.0, 2.0, 9.0), 2, {"a: CPU 2 × the bare loop ≤ 2 ×": True, "a: 3 calls ≤ 3": True}),
        ((1.0, 2.1, 2.2), 2, {"a: CPU 2.1 × the bare loop ≤ 2 ×": False, "a: 3 calls ≤ 3": True}),
    ],
)
def test_medians_are_claimed(ratios: tuple[float, ...], machines: int, judged: dict[str, bool]) -> None:
    found = comparison(*ratios, machines=machines)
    assert claims(Results(command="", on={}, cells={"a": found})) == judged


def test_too_many_calls_make_the_claim_false() -> None:
    one = compared(Cell(1, 1), rounds(1, 1), rounds(1, 1))
    assert claims(Results(command="", on={}, cells={"a": one}))["a: 6 calls ≤ 3"] is False


def test_each_side_has_a_line() -> None:
    text = "\n".join(lines(Results(command="", on={}, cells={"10 machines": comparison(1.5)})))
    assert "2 launch calls for 10 machines each" in text
    assert "provisioner CPU 3.75 / 3.75 / 3.75 ms, 1.5 calls (DescribeInstances 1, RunInstances 0.5)" in text
    assert "bare loop   CPU 2.5 / 2.5 / 2.5 ms" in text
    assert "CPU of the provisioner ÷ bare loop = 1.5 / 1.5 / 1.5" in text


@pytest.mark.parametrize(("cell", "names"), [("", list(CELLS)), ("1", ["1 machine"]), ("10", ["10 machines"])])
def test_cells_are_chosen_by_the_machines_of_a_call(cell: str, names: list[str]) -> None:
    assert list(chosen(cell)) == names


def test_an_unknown_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="CELL=7: unknown cell; expected 1 or 10"):
        chosen("7")


@pytest.mark.parametrize("given", [{"ROUNDS": "x"}, {"ROUNDS": "0"}, {"SEED": "x"}])
def test_arguments_that_are_no_numbers_are_refused(given: dict[str, str]) -> None:
    assert numbers({"SEED": "3"}) == (3, ROUNDS)
    with pytest.raises(ValueError, match="ROUNDS one of at least 1"):
        numbers(given)


def test_the_bare_loop_sends_the_call_of_the_provisioner() -> None:
    """Also the same number of tags, so that both sides pay for requests and replies of one size."""
    (account,) = (declared := declaration(1))["accounts"]
    (config,) = declared["worker_pools"][0]["launch_configs"]
    call = committed(config, Ec2Settings(), LaunchSettings())
    theirs = parameters("token", 10)
    tags = {row["Key"]: row["Value"] for row in theirs["TagSpecifications"][0]["Tags"]}
    assert tags["slipway-account"] == account["id"]
    ours = run_instances(call, token="token", count=10, user_data=theirs["UserData"], tags=tags)
    assert ours == theirs
