# SPDX-License-Identifier: Apache-2.0
"""Numba's CUDA target on the software driver, as far as it goes without kernels."""
import gc
import os
import sys

# A device of this process's own: its figures are nobody else's.
os.environ["CAID_SOFTCUDA_UUID"] = f"GPU-{os.getpid():08x}-0000-4000-8000-000000000000"

try:
    import numpy as np
    from numba import cuda
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def main():
    data = np.arange(1 << 20, dtype=np.float64).reshape(1024, 1024)
    free, total = cuda.current_context().get_memory_info()
    there = cuda.to_device(data)
    assert cuda.current_context().get_memory_info().free <= free - data.nbytes
    assert (there.copy_to_host() == data).all()
    assert (there[3:5, ::2].copy_to_host() == data[3:5, ::2]).all()

    stream = cuda.stream()
    pinned = cuda.pinned_array(data.shape, data.dtype)
    pinned[:] = -data
    start, end = cuda.event(), cuda.event()
    start.record(stream)
    there.copy_to_device(pinned, stream=stream)
    back = cuda.pinned_array(data.shape, data.dtype)
    there.copy_to_host(back, stream=stream)
    end.record(stream)
    stream.synchronize()
    assert (back == -data).all()
    assert cuda.event_elapsed_time(start, end) >= 0

    wrapped = cuda.as_cuda_array(there)
    assert wrapped.__cuda_array_interface__["data"] == there.__cuda_array_interface__["data"]
    mapped = cuda.mapped_array(16, dtype=np.int32)
    mapped[:] = 7
    assert (cuda.as_cuda_array(mapped).copy_to_host() == 7).all()

    done = []
    stream.add_callback(lambda stream, status, arg: done.append(arg), "called")
    stream.synchronize()
    assert done == ["called"]

    del there, wrapped, mapped, pinned, back
    gc.collect()
    cuda.current_context().memory_manager.deallocations.clear()
    assert cuda.current_context().get_memory_info() == (free, total)


main()
