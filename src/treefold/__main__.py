"""`python -m treefold` is `treefold`."""

import sys

try:
    from treefold.cli import main

    main()
except KeyboardInterrupt:  # while the first modules are imported
    sys.exit(130)
