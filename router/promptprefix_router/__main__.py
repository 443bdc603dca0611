"""``python -m promptprefix_router``."""

from promptprefix_router.main import main

raise SystemExit(main())
