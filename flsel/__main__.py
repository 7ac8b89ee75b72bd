"""``python -m flsel``."""

import sys

from flsel.cli import main

sys.exit(main())
