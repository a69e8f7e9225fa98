"""Ids. UUIDv7 (RFC 9562 §5.7): time-ordered, so that index pages stay warm and "lowest id" means "oldest"."""

import hashlib
import io
import os
import secrets
import threading
import time
from typing import Final

_lock = threading.Lock()
_last_ms = 0
_counter = 0

WORKER_TOKEN: Final = "slipway-worker-"  # noqa: S105 # the beginning of a token
"""Beginning of workers' tokens, by which every service tells them from others without a look-up."""
LEASE_TOKEN: Final = "slipway-lease-"  # noqa: S105 # the beginning of a token
"""Beginning of tokens that are bound to a lease; then come the id of the lease, a dot, and the secret."""
# A system call for every few bytes would take a tenth of a busy service's time.
BLOCK_BYTES: Final = 4096
_block = io.BytesIO()


def random_bytes(number: int) -> bytes:
    """Random bytes for ids, at most BLOCK_BYTES, buffered from the system. Not for secrets: see new_secret."""
    global _block
    with _lock:
        if len(drawn := _block.read(number)) < number:
            _block = io.BytesIO(os.urandom(BLOCK_BYTES))
            drawn = _block.read(number)
    return drawn


def _clear_block() -> None:
    """Discard buffered randomness in a forked process, which would otherwise draw the same bytes as its parent."""
    global _block
    _block = io.BytesIO()


if hasattr(os, "register_at_fork"):  # absent on Windows
    os.register_at_fork(after_in_child=_clear_block)


def new_id() -> str:
    """Create a UUIDv7 string; strictly increasing within this process, even within one millisecond."""
    global _last_ms, _counter
    with _lock:
        now_ms = time.time_ns() // 1_000_000
        if now_ms > _last_ms:
            _last_ms, _counter = now_ms, secrets.randbits(16)
        else:
            _counter += 1
        ms, counter = _last_ms, _counter
    # RFC 9562 §6.2 method 1: a counter of 18 bits seeded at random fills rand_a and the head of rand_b.
    value = (ms & (1 << 48) - 1) << 80 | 0x7 << 76 | (counter >> 6 & 0xFFF) << 64
    value |= 0b10 << 62 | (counter & 0x3F) << 56 | int.from_bytes(random_bytes(7), "big")
    digits = f"{value:032x}"  # half the time of uuid.UUID
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def new_secret() -> str:
    """Create a 256-bit secret for tokens that are shown once and stored hashed."""
    return secrets.token_urlsafe(32)


def new_worker_token() -> str:
    """Create the token of one worker."""
    return WORKER_TOKEN + new_secret()


def new_lease_token(lease_id: str) -> str:
    """Create a token that is bound to one lease."""
    return f"{LEASE_TOKEN}{lease_id}.{new_secret()}"


def hash_secret(secret: str) -> str:
    """SHA-256 in hexadecimal. Sufficient for 256-bit random secrets, which cannot be brute-forced."""
    return hashlib.sha256(secret.encode()).hexdigest()


def digest(body: bytes) -> str:
    """SHA-256 in hexadecimal, as the identity of a content."""
    return hashlib.sha256(body).hexdigest()
