"""Database access of the provisioner: SQL statements, returning frozen values.

Lock order everywhere: pool, config, launch stop guard, lease, lease request, batch, worker, outbox; ids ascending.
Releasing units locks leases after workers. This cannot deadlock: those workers have had their call, and a transaction
that holds a lease waits only for workers that have not.
"""
