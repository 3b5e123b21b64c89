# SPDX-License-Identifier: Apache-2.0
"""Streams, events, timelines, and the work that this process has under way on a memory."""
