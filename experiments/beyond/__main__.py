"""`python -m experiments.beyond` is `experiments.beyond.run`."""

import sys

from experiments.beyond.run import main

if __name__ == "__main__":
    sys.exit(main())
