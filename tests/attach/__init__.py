"""`make attach QUEUE=redis SEED=1`: workers that follow a real queue by `slipway-monitor` and `slipway-worker wrap`."""
