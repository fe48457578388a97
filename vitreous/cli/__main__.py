import sys

from vitreous.cli import main

sys.exit(main())
