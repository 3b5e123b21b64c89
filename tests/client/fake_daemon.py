# SPDX-License-Identifier: Apache-2.0
"""A daemon that says whatever a test wants: HELLO and STATUS as given, and a refusal of all else."""

import contextlib
import pathlib
import socket
import sys
import threading

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "daemon"))
from raw import pack, unpack  # noqa: E402

SHUTDOWN = 14  # proto/errors.def
DEVICE = {"uuid": "GPU-00000000-0000-4000-8000-000000000001", "name": "Fake", "total": 1 << 30,
          "granularity": 2 << 20, "handoff": "memops", "kinds": ["device", "legacy", "pinned"],
          "memops": True, "readonly_host": True, "mps": False, "persistence": "on",
          "compute_mode": "default"}
HELLO = {"version": 1, "features": [], "server": "caid 0.1.0", "driver": "cuda", "pool": "uid:0",
         "devices": [DEVICE], "packet_max": 65536, "fds_max": 253, "open_max": 1024}
STATUS = {"server": "caid 0.1.0", "pid": 1, "uptime_ns": 1, "driver": "cuda",
          "driver_path": "/lib/libcuda.so.1", "driver_version": 13000, "connections": 1, "pools": 1,
          "blocks": 0, "arrays": 0, "names": 0, "leases": 0, "jobs": 0, "release_errors": 0,
          "watches": 0, "pending": 0, "contexts": 0, "brackets": 0, "pages": 0, "timelines": 0,
          "turn_cpu_ns": 0, "turn_wall_ns": 0,
          "devices": [DEVICE]}


def answer(connection, answers):
    with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while packet := connection.recv(65536):
            if packet[1] != 0:
                answers.get("notified", bytes)(packet)
                continue
            _, number, method, _ = unpack(packet)
            result = answers.get(method, (SHUTDOWN, "the daemon is stopping"))
            fds, error = [], None
            if callable(result):
                result, fds = result()
            if isinstance(result, tuple):
                error, result = {"code": result[0], "text": result[1], **dict(result[2:])}, None
            socket.send_fds(connection, [pack([1, number, error, result])], fds)


@contextlib.contextmanager
def fake_daemon(path, device=None, silent=False, **answers):
    """Answers a method with what is given by its name: a result, a refusal (code, text,
    other pairs), or a function
    that returns a result and fds; one that raises ConnectionResetError hangs up. `notified` is called
    with each notification. Some changes of a device are for both HELLO and STATUS."""
    devices = [{**DEVICE, **(device or {})}]
    answers = {"hello": {**HELLO, "devices": devices}, "status": {**STATUS, "devices": devices},
               **answers}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        connections = []

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                if not silent:
                    threading.Thread(target=answer, args=(connection, answers)).start()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                if silent:
                    connection.close()
