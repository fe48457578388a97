"""``python -m vitreous``, for ``torchrun -m vitreous``."""

import sys

from vitreous.cli import main

sys.exit(main())
