import sys

from slipway_local.demo.program import main

sys.exit(main())
