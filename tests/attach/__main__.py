import sys

from tests.attach.run import main

sys.exit(main())
