"""`python -m surprise_hf` is `surprise-hf`."""

from .cli import main

raise SystemExit(main())
