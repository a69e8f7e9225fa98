"""Nobody waits for much longer than its share, whatever others ask for: a smaller `make terraform-fair`."""

from tests.support import virtual_time
from tests.terraform import fair


def test_popular_configurations_leave_room_for_others() -> None:
    """A caller that is passed over for good waits for all of the time, which is above three shares."""
    played = virtual_time.run(fair.play_virtual("popular", seed=1, seconds=80.0, configurations=60))
    assert played.shares <= fair.SHARES_MAX
    assert played.served == 60
    assert played.processes <= fair.POLICY.max_processes
