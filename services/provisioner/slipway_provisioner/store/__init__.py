"""SQL in, frozen values out.

Lock order everywhere: pool, config, brake guard, lease, lease request, batch, worker, outbox; ids ascending. Giving
units back locks leases behind workers: those were called for, and who holds a lease waits only for workers that wait.
"""
