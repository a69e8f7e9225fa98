"""Registration secrets with which machines prove that they belong to a launch batch. Pure."""

import hashlib
import hmac

from slipway_provisioner.domain.encryption import BadKeys, key_lines


class RegistrationKeys:
    """Keys from which the secrets of batches are derived: by the first one, and verified with any."""

    def __init__(self, lines: str) -> None:
        """`lines` has the base64 of one key a line, like those of states. Raises BadKeys, also if there is none."""
        self._keys = key_lines(lines)
        if not self._keys:
            raise BadKeys(
                "there is no key; write the base64 of 32 random bytes, as `openssl rand -base64 32` prints it"
            )

    def secret(self, batch_id: str) -> str:
        """Registration secret of a batch, derived so that it is never stored."""
        return _derived(self._keys[0], batch_id)

    def verifies(self, batch_id: str, secret: str) -> bool:
        """True if this is the secret of the batch under one of the keys. No early exit reveals which."""
        given = secret.encode()
        return sum(hmac.compare_digest(_derived(key, batch_id).encode(), given) for key in self._keys) > 0


def _derived(key: bytes, batch_id: str) -> str:
    return hmac.new(key, batch_id.encode(), hashlib.sha256).hexdigest()
