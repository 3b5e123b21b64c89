# SPDX-License-Identifier: Apache-2.0
"""The client: its connection, what it asks the daemon for, and the daemon of a program's own."""
