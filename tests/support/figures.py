"""Figures of a healthy run, which tests of the policy benchmark change."""

from typing import Final

from bench.policies.figures import Figures

PLAIN: Final = Figures(
    accepted=100,
    failed=3,
    registered=90,
    failed_meanwhile=None,
    detect_minutes=None,
    recover_minutes=None,
    share_left=None,
    unfairness=0.01,
    jain=1.0,
    on_bad_image=0,
    wait_mean=100.0,
    wait_p95=150.0,
    peak=2,
    surge=None,
)
