"""The speed at which this machine can play a demo now, measured before anything starts.

Above it the times of the services, which the speed divides, get shorter than the pauses of a busy machine, and a demo
shows the machine instead of Slipway.
"""

import asyncio
import os
import sys
from typing import Final

SECONDS: Final = 0.5
ROUNDS_PER_SPEED: Final = 3000.0
"""Rounds per second that a demo needs for each unit of its speed: on two idle cores, which do 96,000 in all, its
processes take about a core at 20 times real speed, and half of what is there has to stay free for bursts."""
SPEED_MIN: Final = 1.0
SPIN: Final = """
import sys, time
rounds, end = 0, time.perf_counter() + float(sys.argv[1])
while time.perf_counter() < end:
    for _ in range(1000):
        pass
    rounds += 1
print(rounds)
"""


async def rounds_per_second() -> float:
    """Rounds of a loop that one process for each core gets done in a second, beside what else runs here."""
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", SPIN, f"{SECONDS:g}", stdout=asyncio.subprocess.PIPE
        )
        for _ in range(os.cpu_count() or 1)
    ]
    printed = [(await child.communicate())[0] for child in children]
    return sum(int(text) for text in printed) / SECONDS


def bounded_speed(speed: float, rounds_per_second: float) -> float:
    """The speed, lowered to the whole number that a machine of so many rounds can play."""
    return min(speed, max(SPEED_MIN, rounds_per_second // ROUNDS_PER_SPEED))
