"""`python -m experiments.real` is `experiments.real.run`."""

import sys

from experiments.real.run import main

if __name__ == "__main__":
    sys.exit(main())
