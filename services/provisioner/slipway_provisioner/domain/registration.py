"""Registration secret with which machines prove that they belong to a launch batch. Pure."""

import hashlib
import hmac


def batch_secret(key: str, batch_id: str) -> str:
    """Registration secret of a batch, derived by HMAC-SHA256 so that it is never stored."""
    return hmac.new(key.encode(), batch_id.encode(), hashlib.sha256).hexdigest()
