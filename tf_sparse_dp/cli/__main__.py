"""For `python -m tf_sparse_dp.cli`."""

import sys

from tf_sparse_dp.cli import main

sys.exit(main())
