"""SQL in, frozen Structs out. Decides nothing.

One rule of locking for the whole schema: whoever writes a lease pool, its leases or its requests holds the lock on
the pool's row, taken first and in ascending order of ids. What is read after the lock is therefore true until the
commit, and no two writers can deadlock. Time is read after the lock too: what waited for it must not act on a clock
from before the wait.
"""
