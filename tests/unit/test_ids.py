"""IDs increase with time, and secrets are stored as hashes."""

import threading
import uuid

from slipway_common.base import clock
from slipway_common.base.ids import hash_secret, new_id, new_secret


def test_ids_are_version_7_and_grow() -> None:
    made = [new_id() for _ in range(20_000)]
    assert made == sorted(set(made))
    assert {(uuid.UUID(id_).version, uuid.UUID(id_).variant) for id_ in made} == {(7, uuid.RFC_4122)}


def test_ids_carry_the_time() -> None:
    before = int(clock.utc_now().timestamp() * 1000)
    carried = uuid.UUID(new_id()).int >> 80
    assert before <= carried <= int(clock.utc_now().timestamp() * 1000) + 1


def test_threads_share_no_id() -> None:
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda ids=ids: ids.extend(new_id() for _ in range(2_000))) for ids in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id_ for ids in made for id_ in ids}) == 8_000


def test_secrets_are_long_and_hashed() -> None:
    secret = new_secret()
    assert len(secret) >= 43
    assert secret != new_secret()
    assert len(hash_secret(secret)) == 64
    assert secret not in hash_secret(secret)
