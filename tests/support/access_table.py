"""Access to every route of every service, as it ought to be: a table of our own, so that a route that asks for less
than it should is seen. It is compared with the routes as they are served."""

from typing import Final

OPEN, WORKER, LEASE = "open", "worker", "lease"
"""Access without a token, by the token of the worker in the path, and also by that of the lease."""
COMMON: Final = """
GET  /livez                                             open
GET  /readyz                                            open
GET  /metrics                                           read:metrics
GET  /openapi.json                                      read
GET  /status                                            read
GET  /alerts                                            read
POST /alerts/silence                                    alerts:write
GET  /audit                                             read
GET  /tokens                                            read
POST /tokens/{name}/revoke                              tokens:write
POST /restored                                          restores:write
"""
CONSUMING: Final = """
GET  /dead-letters                                      read
GET  /dead-letters/{topic}/{partition}/{offset}         read:settings
POST /dead-letters/replay                               dead-letters:write
POST /dead-letters/drop                                 dead-letters:write
GET  /positions/stopped                                 read
POST /positions/adopt                                   positions:write
POST /positions/adopt-all                               positions:write
"""
ROUTES: Final = {
    "provisioner": COMMON
    + CONSUMING
    + """
GET  /accounts                                          read
GET  /accounts/{account_id}                             read
GET  /errors                                            read
GET  /errors/totals                                     read
GET  /launch-limits                                     read
GET  /providers                                         read
GET  /providers/{provider}/classify                     read
POST /accounts/{account_id}/check                       accounts:write accounts:write:{owner}
POST /accounts/{account_id}/retire                      accounts:write accounts:write:{owner}
POST /accounts/{account_id}/reinstate                   accounts:write accounts:write:{owner}
POST /accounts/{account_id}/confirm-unresponsive        accounts:write accounts:write:{owner}
GET  /console-outputs                                   read
GET  /declaration                                       read:settings
PUT  /declaration                                       declaration:write declaration:write:{owner}
GET  /decisions/{decision_id}                           read
GET  /demand                                            read
GET  /deployment                                        read
GET  /launch-configs                                    read
GET  /launch-configs/{config}                           read
POST /launch-configs/{config}/pause                     launch-configs:write launch-configs:write:{owner}
POST /launch-configs/{config}/resume                    launch-configs:write launch-configs:write:{owner}
GET  /launch-stops                                      read
POST /stop-launching                                    launching:stop
POST /start-launching                                   launching:stop
GET  /pools                                             read
GET  /pools/{pool_id}                                   read
PUT  /pools/{pool_id}                                   declaration:write declaration:write:{owner}
GET  /pools/{pool_id}/decisions                         read
PUT  /pools/{pool_id}/demand                            demand:write:{pool_id}
DELETE /pools/{pool_id}/demand/{source}                 demand:write:{pool_id}
GET  /pools/{pool_id}/history                           read
GET  /pools/{pool_id}/rollback                          read
POST /pools/{pool_id}/rollback                          declaration:write declaration:write:{owner}
POST /pools/{pool_id}/pause                             pools:write pools:write:{owner}
POST /pools/{pool_id}/resume                            pools:write pools:write:{owner}
POST /pools/{pool_id}/freeze                            pools:write pools:write:{owner}
POST /pools/{pool_id}/unfreeze                          pools:write pools:write:{owner}
GET  /pools/{pool_id}/user-data                         read:settings
GET  /recovery                                          read
POST /recovery/confirm                                  restores:write
GET  /workers                                           read
GET  /workers/{worker_id}                               read
POST /workers/{worker_id}/terminate                     workers:terminate workers:terminate:{owner}
POST /workers/{worker_id}/state                         workers:state workers:state:{owner}
POST /workers/{worker_id}/unlock                        workers:state workers:state:{owner}
GET  /state-keys                                        read
POST /state-keys/rotate                                 state-keys:write
POST /workers/register                                  open
POST /workers/{worker_id}/claimed                       worker
POST /workers/{worker_id}/idle                          worker
POST /workers/{worker_id}/heartbeat                     worker
GET  /workers/{worker_id}/should-terminate              worker
POST /workers/{worker_id}/error                         worker
POST /workers/{worker_id}/notice                        worker
POST /workers/{worker_id}/stopped                       worker
""",
    "weight-calculator": COMMON
    + CONSUMING
    + """
GET  /signals                                           read
POST /signals                                  signal:write:{target_kind}:{target_id} signal:write:owner:{owner}
GET  /weights                                           read
""",
    "lease-broker": COMMON
    + CONSUMING
    + """
GET  /declaration                                       read
POST /lease-gangs                                       leases:write:{lease_pool_id}
GET  /lease-pools                                       read
PUT  /lease-pools                                       lease-pools:write lease-pools:write:{owner}
GET  /lease-pools/{lease_pool_id}                       read leases:write:{lease_pool_id}
PATCH /lease-pools/{lease_pool_id}                      lease-pools:write lease-pools:write:{owner}
POST /lease-pools/{lease_pool_id}/drain                 lease-pools:write lease-pools:write:{owner}
POST /lease-pools/{lease_pool_id}/undrain               lease-pools:write lease-pools:write:{owner}
GET  /lease-pools/{lease_pool_id}/history               read
POST /lease-pools/{lease_pool_id}/leases                leases:write:{lease_pool_id} lease
GET  /lease-pools/{lease_pool_id}/report                read
GET  /lease-pools/{lease_pool_id}/requests              read leases:write:{lease_pool_id}
GET  /lease-pools/{lease_pool_id}/requests/{request_id} read leases:write:{lease_pool_id}
DELETE /lease-pools/{lease_pool_id}/requests/{request_id} leases:write:{lease_pool_id}
PUT  /lease-pools/{lease_pool_id}/units                 lease-pools:write lease-pools:write:{owner}
POST /lease-pools/{lease_pool_id}/unleased              leases:write:{lease_pool_id}
GET  /leases                                            read leases:write:{lease_pool_id}
GET  /leases/{lease_id}                                 read leases:write:{lease_pool_id}
POST /leases/{lease_id}/confirm                         leases:write:{lease_pool_id}
POST /leases/{lease_id}/heartbeat                       leases:write:{lease_pool_id} lease
GET  /leases/{lease_id}/history                         read leases:write:{lease_pool_id}
POST /leases/{lease_id}/release                         leases:write:{lease_pool_id} lease
POST /leases/{lease_id}/renew                           leases:write:{lease_pool_id} lease
POST /leases/{lease_id}/token                           leases:write:{lease_pool_id}
GET  /slots                                             read
PUT  /slots                                             lease-pools:write lease-pools:write:{owner}
""",
    "monitor": """
GET  /livez                                             open
GET  /readyz                                            open
GET  /metrics                                           read:metrics
""",
    "simulator": """
POST /accounts/{account}/instances                      open
GET  /accounts/{account}/instances                      open
GET  /accounts/{account}/instances/{instance_id}        open
DELETE /accounts/{account}/instances/{instance_id}      open
GET  /accounts/{account}/instances/{instance_id}/console open
GET  /accounts/{account}/identity                       open
PUT  /demand/{pool_id}                                  open
POST /faults                                            open
DELETE /faults/{name}                                   open
POST /instances/{instance_id}/crash                     open
GET  /ledger                                            open
GET  /livez                                             open
POST /queue/{pool_id}/claim                             open
POST /queue/{pool_id}/tasks/{task_id}/renew             open
POST /queue/{pool_id}/tasks/{task_id}/finish            open
GET  /readyz                                            open
POST /scenario                                          open
GET  /state                                             open
POST /tasks                                             open
""",
}
Route = tuple[str, str]
TABLE: Final[dict[str, dict[Route, str]]] = {
    service: {(method, path): access for method, path, access in (line.split(maxsplit=2) for line in lines)}
    for service, lines in ((service, filter(None, rows.splitlines())) for service, rows in ROUTES.items())
}
