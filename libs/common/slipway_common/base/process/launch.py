"""First program of a process for a plugin or the CLI: ties its life to that of its parent, then becomes the program.

A program of its own, since code between fork and exec is unsafe in a parent with threads. Uses only the standard
library, so that it takes about 20 ms. Arguments: file descriptor for errors, process id of the parent, LC_CTYPE or
nothing, the command of the program. Writes the number of the error if it cannot be executed, and nothing otherwise.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(status: int, parent: int, locale: str, command: list[str]) -> None:
    os.set_inheritable(status, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it ended before the signal was set
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump holds the provider's credentials
    os.umask(0o077)
    os.environ.pop("LC_CTYPE", None)  # the interpreter has set it where there was no locale
    if locale:
        os.environ["LC_CTYPE"] = locale
    try:
        os.execv(command[0], command)  # noqa: S606 # this program becomes another
    except OSError as error:
        os.write(status, str(error.errno).encode())
        os._exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
