"""The kernels of ``hashes.cu`` and CUDA's own compiler; the names of CuPy and RMM that are used. Needs no GPU."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_device_hashes import SOURCE

MISSING = importlib.util.find_spec("cupy") is None or importlib.util.find_spec("rmm") is None
pytestmark = [pytest.mark.rapids, pytest.mark.skipif(MISSING, reason="needs CuPy and RMM")]


def compiled(architecture):
    """Compile the kernels as CuPy does; give the assembly, and what the compiler has to say."""
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")

    def call(function, *arguments):
        code, *results = function(*arguments)
        assert code == nvrtc.nvrtcResult.NVRTC_SUCCESS
        return results[0] if results else None

    def text(size, get):
        into = b" " * call(size, program)
        call(get, program, into)
        return into.strip(b"\0 \n").decode()

    program = call(nvrtc.nvrtcCreateProgram, SOURCE.read_bytes(), b"hashes.cu", 0, [], [])
    options = [b"-std=c++17", f"-arch=compute_{architecture}".encode()]
    done = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    assert done == (nvrtc.nvrtcResult.NVRTC_SUCCESS,), log
    return text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX), log


@pytest.mark.parametrize("architecture", [70, 75, 80, 90, 100, 120])
def test_the_compiler_of_cuda_has_nothing_to_say(architecture, tmp_path):
    """No warning but of the age of an architecture; nothing spills, and there are registers for 1024 threads."""
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    if architecture not in nvrtc.nvrtcGetSupportedArchs()[1]:
        pytest.skip(f"this compiler knows no compute_{architecture}")
    assembly, log = compiled(architecture)
    assert [line for line in log.splitlines() if "are deprecated and may be removed" not in line] == []
    assert set(re.findall(r"\.entry (\w+)", assembly)) == {"hash_blocks", "crc_blocks"}
    assembler = shutil.which("ptxas", path=os.pathsep.join(map(str, directories())))
    if assembler is None:
        pytest.skip("compiled without a warning; there is no ptxas to count registers")
    source = tmp_path / "hashes.ptx"
    source.write_text(assembly)
    line = [assembler, "-v", f"-arch=sm_{architecture}", source, "-o", tmp_path / "hashes.cubin"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr) == [("0", "0")] * 2
    assert max(map(int, re.findall(r"Used (\d+) registers", done.stderr))) <= 64
    print(done.stderr)


def directories():
    """Give the directories in which the wheels of CUDA have their assembler."""
    for place in importlib.import_module("nvidia").__path__:
        yield from Path(place).glob("*/bin")


def test_what_is_used_of_cupy_and_rmm_is_there():
    """Names and parameters are those that the stand-ins above have."""
    cupy, rmm = importlib.import_module("cupy"), importlib.import_module("rmm")
    module = cupy.RawModule(code=SOURCE.read_text(), options=("-std=c++17",))
    assert (module.backend, module.options) == ("nvrtc", ("-std=c++17",))
    assert module.get_function.__doc__.startswith("RawModule.get_function(self, str name)")
    assert cupy.RawKernel.__call__.__doc__.startswith("RawKernel.__call__(self, grid, block, args,")
    runtime = cupy.cuda.runtime
    assert runtime.memcpyAsync.__doc__.startswith(
        "memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t"
    )
    assert (runtime.memcpyDeviceToHost, cupy.cuda.Stream.null.ptr) == (2, 0)
    assert all(callable(getattr(cupy.cuda.Stream, name)) for name in ("__enter__", "__exit__", "synchronize"))
    assert {"to_device", "ptr", "size"} <= set(dir(rmm.DeviceBuffer))
