"""First program of a process for a command, a plugin or the CLI: gives up our rights, ties its life to that of its
parent, then becomes the program.

A program of its own, since code between fork and exec is unsafe in a parent with threads. Uses only the standard
library, so that it takes about 20 ms. Arguments: file descriptor for errors; process id of the parent that it must not
outlive, or 0; LC_CTYPE or nothing; UID:GID:GROUPS or nothing; the command of the program. Writes the number of the
error if it cannot be executed, and nothing otherwise.
"""

import ctypes
import os
import resource
import signal
import sys
import warnings  # noqa: F401 # execvp imports it, as a user who may not be able to read the interpreter's library

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4


def main(status: int, parent: int, locale: str, user: str, command: list[str]) -> None:
    os.set_inheritable(status, False)
    os.environ.pop("LC_CTYPE", None)  # the interpreter has set it where there was no locale
    if locale:
        os.environ["LC_CTYPE"] = locale
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by the interpreter
        signal.signal(signum, signal.SIG_DFL)
    try:
        if user:
            become(*user.split(":"))
        if parent:
            tie(parent)  # after the change of user, which undoes it
        os.execvp(command[0], command)  # noqa: S606 # this program becomes another
    except OSError as error:
        os.write(status, str(error.errno).encode())
        os._exit(127)


def become(uid: str, gid: str, groups: str) -> None:
    """Become another user, without capabilities, and for good: no program gives more rights from now on."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    os.setgroups([int(group) for group in groups.split(",")])
    os.setresgid(int(gid), int(gid), int(gid))
    os.setresuid(int(uid), int(uid), int(uid))
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def tie(parent: int) -> None:
    """End with the parent, and leave nothing behind that others could read."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it ended before the signal was set
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump holds the provider's credentials
    os.umask(0o077)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
