# SPDX-License-Identifier: Apache-2.0
"""pytest, which says where it stands before a test takes too long: from its first import on, and on the
stderr that pytest does not capture."""

import faulthandler
import os
import sys

if __name__ == "__main__":  # multiprocessing's children import it, too
    limit_s = int(os.environ.get("CAID_TEST_TIMEOUT", 480))  # of all tests of a file
    faulthandler.dump_traceback_later(limit_s * 5 // 6, exit=True, file=os.dup(2))

    import pytest

    sys.exit(pytest.main())
