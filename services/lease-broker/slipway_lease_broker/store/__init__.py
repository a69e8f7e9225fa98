"""SQL statements that read and write frozen Structs. No decisions are made here.

One locking rule holds for the whole schema: a transaction that writes a lease pool, its leases or its requests first
locks the pool's row, several pools in ascending order of ids. Rows read after the lock therefore stay as read until the
commit, and no two writers can deadlock. The clock is read after the lock too, since a transaction that waited for the
lock must not act on a time from before the wait.
"""
