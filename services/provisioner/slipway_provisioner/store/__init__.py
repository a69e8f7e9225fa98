"""SQL in, frozen values out. Lock order everywhere: pool, config, lease, batch, worker, outbox; ids ascending."""
