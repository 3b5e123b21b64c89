# SPDX-License-Identifier: Apache-2.0
"""What the daemon itself costs: memory on the GPU, and resident memory for each idle client.

usage: bench_daemon.py
"""

import ctypes
import os
import resource

import caid

CLIENTS = 2000


class Nvml:
    """Used bytes of GPU 0 as NVML gives them, or None where there is no NVIDIA driver."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                    ("used", ctypes.c_ulonglong)]

    def __init__(self):
        try:
            self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.lib = None
            return
        self.device = ctypes.c_void_p()
        if (self.lib.nvmlInit_v2() or
                self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))):
            self.lib = None

    def used(self):
        memory = self.Memory()
        if self.lib is None or self.lib.nvmlDeviceGetMemoryInfo(self.device,
                                                                ctypes.byref(memory)):
            return None
        return memory.used


def rss_bytes(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def idle_clients(daemon):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    n = min(CLIENTS, hard - 100)
    before = rss_bytes(daemon.pid)
    clients = [daemon.connect() for _ in range(n)]
    each = (rss_bytes(daemon.pid) - before) / n
    for client in clients:
        client.close()
    return n, each


def main():
    nvml = Nvml()
    before = nvml.used()
    with caid.LocalDaemon() as daemon:
        with daemon.connect() as client:
            client.ping()
            after = nvml.used()
            driver = client.status().driver
        if before is not None and driver == "cuda":
            print(f"the daemon's memory on the GPU: {(after - before) / 2**20:.1f} MiB")
        else:
            print("the daemon's memory on the GPU: not measured, no NVIDIA GPU")
        n, each = idle_clients(daemon)
        print(f"{n} idle clients: {each / 1024:.2f} KiB of the daemon's memory each")


if __name__ == "__main__":
    main()
