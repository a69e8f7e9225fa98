"""A program that speaks go-plugin's handshake and gRPC services, with faults: `python terraform_plugin.py FAULT…`.

Faults: exit=CODE before the handshake; print=LINE instead of it; silent (no handshake); late=SECONDS until it;
protocol=N; tls; netrpc; tcp; elsewhere (a socket in another folder); debug (TF_REATTACH_PROVIDERS instead of the
handshake); deaf (ignores Shutdown, SIGINT and SIGTERM); ill=SECONDS (answers no health check after this time);
leak=MEGABYTES; on standard error: child (the pid of a descendant), say=TEXT, environment (its variables).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

faults = dict(part.partition("=")[::2] for part in sys.argv[1:])
leaked = bytearray()


def main() -> None:
    if "say" in faults:
        print(faults["say"], file=sys.stderr, flush=True)
    if "environment" in faults:
        print(json.dumps(dict(os.environ)), file=sys.stderr, flush=True)
    if "exit" in faults:
        sys.exit(int(faults["exit"]))
    if "print" in faults:
        print(faults["print"], flush=True)
    if "deaf" in faults:
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
    if "child" in faults:
        child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print(child.pid, file=sys.stderr, flush=True)
    if "silent" in faults or "print" in faults:
        threading.Event().wait()
    time.sleep(float(faults.get("late", 0)))
    serve()


def serve() -> None:
    import grpc

    began, stopped = time.monotonic(), threading.Event()

    def check(request: bytes, context: Any) -> bytes:
        if "ill" in faults and time.monotonic() - began > float(faults["ill"]):
            time.sleep(30)
        return b"\x08\x01" if request == b"\x0a\x06plugin" else b"\x08\x02"

    def shut_down(request: bytes, context: Any) -> bytes:
        if "deaf" not in faults:
            stopped.set()
        return b""

    server = grpc.server(ThreadPoolExecutor(4))
    for service, method, function in (
        ("grpc.health.v1.Health", "Check", check),
        ("plugin.GRPCController", "Shutdown", shut_down),
    ):
        handler: Any = grpc.unary_unary_rpc_method_handler(function)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    folder = tempfile.mkdtemp(dir="/tmp") if "elsewhere" in faults else os.environ["TMPDIR"]
    socket = f"{folder}/plugin{os.getpid()}"
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    network, address = ("tcp", "127.0.0.1:1") if "tcp" in faults else ("unix", socket)
    protocol, last = faults.get("protocol", "5"), "netrpc" if "netrpc" in faults else "grpc"
    if "debug" in faults:
        entry = {"Protocol": "grpc", "ProtocolVersion": 6, "Pid": os.getpid(), "Test": True}
        entry["Addr"] = {"Network": network, "String": address}
        print(f"Provider started. Set\n\n\tTF_REATTACH_PROVIDERS='{json.dumps({'x/y/z': entry})}'")
    else:
        print(f"1|{protocol}|{network}|{address}|{last}|{'MII' * 300 if 'tls' in faults else ''}", flush=True)
    leaked.extend(b"x" * (1024 * 1024 * int(faults.get("leak", 0))))
    stopped.wait()
    server.stop(0).wait()
    if os.path.exists(socket):
        os.unlink(socket)


if __name__ == "__main__":
    main()
