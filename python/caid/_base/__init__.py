# SPDX-License-Identifier: Apache-2.0
"""What all other folders know: errors, records, shapes and types, what ends by ``close()``."""
