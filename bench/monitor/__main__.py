"""`make bench-monitor SOURCES=2000`: memory, CPU time and lag of one `slipway-monitor` that reads so many pages.

The yardstick is a bare client in the same run: a request of the page by the same HTTP client, and a publication by the
same Kafka client, one after another.
"""

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx2
import psutil
from aiokafka import AIOKafkaProducer

from slipway_api.events.topics import POOL_DEMAND
from slipway_common.declaration.strict_yaml import write
from slipway_common.messaging import topic_admin
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.supervisor import Supervisor, run
from tests.support import readers
from tests.support.folders import temporary_folder

INTERVAL_SECONDS: Final = 10.0
START_SECONDS: Final = 180.0
MEASURED_SECONDS: Final = 12.0
BARE: Final = 500
MEMORY_MAX: Final = 150e6
RATIO_MAX: Final = 3.0
LAG_MAX: Final = 1.0


async def bare_seconds(url: str, kafka: str, topic: str) -> float:
    """CPU seconds of a request and a publication of a bare client, on a page in another process."""
    async with httpx2.AsyncClient() as http, AIOKafkaProducer(bootstrap_servers=kafka, acks="all") as producer:
        for number in range(50 + BARE):
            if number == 50:
                began = time.process_time()
            answer = await http.get(url)
            await producer.send_and_wait(topic, answer.content, key=b"bare", headers=[("a", b"b")])
        return (time.process_time() - began) / BARE


def metrics(text: str) -> tuple[float, dict[float, float]]:
    """Reports so far, and the cumulated lags by their bounds."""
    reports, lags = 0.0, {}
    for line in text.splitlines():
        if line.startswith("slipway_monitor_reports_total{"):
            reports += float(line.rsplit(" ", 1)[1])
        elif line.startswith('slipway_monitor_lag_seconds_bucket{le="'):
            lags[float(line.split('"')[1])] = float(line.rsplit(" ", 1)[1])
    return reports, lags


async def measure(supervisor: Supervisor, sources: int) -> int:
    """Run the benchmark; returns the exit code."""
    with temporary_folder() as folder:
        kafka = EmbeddedKafka(folder / "kafka")
        await supervisor.start(kafka)
        await topic_admin.create(kafka.bootstrap, prefix="", partitions=4)
        page, port = (
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.monitor.page", stdout=asyncio.subprocess.PIPE
            ),
            free_ports(1)[0],
        )
        assert page.stdout is not None
        url = (await page.stdout.readline()).decode().strip()
        monitor = await _start(folder, url, kafka.bootstrap, port, sources)
        try:
            process = psutil.Process(monitor.pid)
            async with httpx2.AsyncClient(timeout=30.0, headers=readers.HEADERS) as http:
                before = await _warm(http, port, sources)
                cpu = sum(process.cpu_times()[:2])
                await asyncio.sleep(MEASURED_SECONDS)
                cpu = sum(process.cpu_times()[:2]) - cpu
                after, lags = metrics((await http.get(f"http://127.0.0.1:{port}/metrics")).text)
            memory = process.memory_info().rss
            monitor.kill()
            bare = await bare_seconds(url, kafka.bootstrap, POOL_DEMAND.name)
        finally:
            for each in (monitor, page):
                with contextlib.suppress(ProcessLookupError):
                    each.kill()
                await each.wait()
    return judge(sources, memory, cpu / max(1.0, after - before), bare, lags, after - before)


async def _warm(http: Any, port: int, sources: int) -> float:
    """Wait until every source was read once; returns the number of reports. Raises TimeoutError."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            with contextlib.suppress(httpx2.TransportError):  # it does not listen yet
                before, _ = metrics((await http.get(f"http://127.0.0.1:{port}/metrics")).text)
                if before >= sources:
                    return before
            await asyncio.sleep(0.5)


async def _start(folder: Path, url: str, kafka: str, port: int, sources: int) -> Any:
    file = folder / "sources.yaml"
    usual = {"kind": "http", "counts": "waiting", "claims": "hooks", "url": url, "tasks": "waiting"}
    named = [usual | {"name": f"q{n}", "pool": f"p{n}", "interval_seconds": INTERVAL_SECONDS} for n in range(sources)]
    file.write_text(write({"sources": named}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    environment |= {"SLIPWAY_KAFKA": kafka, "SLIPWAY_PORT": str(port), "SLIPWAY_TOKENS_FILE": str(readers.TOKENS_FILE)}
    with (folder / "monitor.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "slipway_monitor.main", "run", str(file)), stdout=log, stderr=log, env=environment
        )


def judge(sources: int, memory: float, cpu: float, bare: float, lags: dict[float, float], reports: float) -> int:
    """Print the figures; returns 1 if a claim is false."""
    total = max(lags.values(), default=0.0)
    lag = next((bound for bound, number in sorted(lags.items()) if number >= 0.99 * total), float("inf"))
    problems = [
        text
        for is_false, text in (
            (memory > MEMORY_MAX, f"memory above {MEMORY_MAX / 1e6:.0f} MB"),
            (cpu > RATIO_MAX * bare, f"CPU time of a report above {RATIO_MAX:g} × that of a bare client"),
            (lag > LAG_MAX, f"p99 of the lag above {LAG_MAX:g} s"),
            (reports < 0.9 * sources * MEASURED_SECONDS / INTERVAL_SECONDS, "reports are missing"),
        )
        if is_false
    ]
    for problem in problems:
        print(f"PROBLEM {problem}")
    print(
        f"{sources} sources: {memory / 1e6:.0f} MB, {cpu * 1e3:.2f} ms of CPU time a report, {cpu / bare:.2f} × a bare "
        f"client's {bare * 1e3:.2f} ms; lag of a poll p99 ≤ {lag:g} s; {reports:.0f} reports"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(run(lambda supervisor: measure(supervisor, int(os.environ.get("SOURCES", "2000")))))
