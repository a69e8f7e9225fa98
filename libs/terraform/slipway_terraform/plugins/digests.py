"""SHA-256 digests of plugin binaries, which have hundreds of megabytes: read again only if the file has changed."""

import asyncio
import errno
import hashlib
import os
import stat


class Digests:
    """Digests by path, cached while size, times and inode of the file stay the same."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}
        self._turn = asyncio.Lock()  # starts that come together read a file once

    async def digest(self, path: str) -> str:
        """Digest of a file, in hex. Raises OSError."""
        async with self._turn:
            status = await asyncio.to_thread(os.stat, path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)  # a device may have no end
            version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            known = self._known.get(path)
            if known is None or known[0] != version:
                known = self._known[path] = (version, await asyncio.to_thread(_read, path))
            return known[1]


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
