"""The secret by which the machines of a batch prove that we asked for them. Pure."""

import hashlib
import hmac


def batch_secret(key: str, batch_id: str) -> str:
    """The registration secret of a batch: derived, so that it stands in no table."""
    return hmac.new(key.encode(), batch_id.encode(), hashlib.sha256).hexdigest()
