# SPDX-License-Identifier: Apache-2.0
"""What a worker of vLLM tells of its memory: an extension of its class, for collective_rpc()."""

import os


def mappings():
    """(first address, last, inode, permissions) of each mapping of this process."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split()
            low, high = (int(x, 16) for x in fields[0].split("-"))
            yield low, high, int(fields[4]), fields[1]


class Told:
    def told(self):
        """Where the tensors of its model lie: {name: [inode, permissions, bytes]}, and Rss and Pss of each inode."""
        from caid.vllm import _model

        maps, where = list(mappings()), {}
        for name, (_, tensor) in _model.named(self.model_runner.get_model())[0].items():
            if tensor.numel():
                at = tensor.data_ptr()
                where[name] = next([inode, mode, tensor.nbytes] for low, high, inode, mode in maps if low <= at < high)
        return {"pid": os.getpid(), "where": where, "pages": pages({inode for inode, *_ in where.values()})}


def pages(inodes):
    """{inode: [Rss, Pss]}, KiB."""
    found, here = {}, None
    with open("/proc/self/smaps") as lines:
        for line in lines:
            fields = line.split()
            if not fields[0].endswith(":"):
                here = int(fields[4])
            elif here in inodes and fields[0] in ("Rss:", "Pss:"):
                found.setdefault(here, [0, 0])[fields[0] == "Pss:"] += int(fields[1])
    return found
