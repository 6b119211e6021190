"""`python -m mereo` is the command line."""

import sys

from mereo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
