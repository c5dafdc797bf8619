"""`python -m onward`."""

from onward.cli import main

raise SystemExit(main())
