"""``python -m flsel``."""

import sys

from flsel.commands.cli import main

sys.exit(main())
