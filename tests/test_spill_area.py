"""Files of a worker die with it; those of a living one never do."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys

import pytest

import ckpt_spill as cs
from ckpt_spill.errands import discover
from ckpt_spill.spill import area as area_module
from ckpt_spill.spill.area import SpillArea
from ckpt_spill.spill.host import open_tier
from ckpt_spill.store.store import Store

CHILD = """
import os, sys
from ckpt_spill.spill.area import SpillArea
from ckpt_spill.store.store import Store
area = SpillArea(Store.create(sys.argv[1]))
open(area.new_path(), "w").close()
print(area.directory, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def other_process(root):
    """Another process with an area, which has one file; it ends with its standard input."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, root], stdin=-1, stdout=-1, text=True)
    try:
        yield child, child.stdout.readline().strip()
    finally:
        child.communicate()


@pytest.fixture
def root(tmp_path):
    Store.create(str(tmp_path / "root"))
    return str(tmp_path / "root")


@pytest.fixture
def opened(root):
    """Make areas, which are closed afterwards."""
    areas = []

    def opened():
        areas.append(SpillArea(Store.open(root)))
        return areas[-1]

    yield opened
    for area in areas:
        area.close()


def in_spill(root):
    return sorted(os.listdir(os.path.join(root, "spill")))


def test_paths(opened):
    """No path is given twice, in one area or several; others may not look into one."""
    areas = [opened(), opened()]
    paths = [area.new_path() for area in areas for _ in range(100)]
    assert len(set(paths)) == 200
    for area in areas:
        assert os.stat(area.directory).st_mode & 0o777 == 0o700


def test_closing(opened, root):
    """An area that is closed leaves nothing, however often; others stay."""
    one, other = opened(), opened()
    for area in (one, other):
        with open(area.new_path(), "w"):
            pass
    one.close()
    one.close()
    assert len(in_spill(root)) == 1
    assert os.listdir(other.directory) == ["0.part"]
    other.close()
    assert in_spill(root) == []


def test_forgotten(root):
    """So does one that nobody has any more."""
    area = SpillArea(Store.open(root))
    with open(area.new_path(), "w"):
        pass
    del area
    assert in_spill(root) == []


def test_killed(opened, root):
    """What a process left that was killed is removed when the next one starts."""
    with other_process(root) as (child, directory):
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert os.listdir(directory) == ["0.part"]
        area = opened()
        assert not os.path.exists(directory)
        assert in_spill(root) == [os.path.basename(area.directory)]


def test_living(opened, root):
    """What a living process has is left alone, stopped or not."""
    with other_process(root) as (child, directory):
        opened()
        os.kill(child.pid, signal.SIGSTOP)
        opened()
        os.kill(child.pid, signal.SIGCONT)
        assert os.listdir(directory) == ["0.part"]
        assert len(in_spill(root)) == 3


def test_ended(root):
    """A process that ends leaves nothing."""
    with other_process(root) as (_, directory):
        assert os.path.exists(directory)
    assert in_spill(root) == []


def test_no_room_for_a_directory(root, monkeypatch):
    """Nothing is left open or locked of an area that could not be made."""
    before = sorted(os.listdir("/proc/self/fd"))
    os_open = os.open

    def failing(path, flags, *args, **kwargs):
        if flags & os.O_DIRECTORY:
            raise OSError(errno.EMFILE, "too many")
        return os_open(path, flags, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        with pytest.raises(OSError, match="too many"):
            SpillArea(Store.open(root))
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert in_spill(root) == []


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs"])
def test_a_shared_file_system(opened, root, monkeypatch, kind):
    """Locks may not be seen by other machines there: nothing is spilled to it, and nobody's area is removed."""
    os.makedirs(os.path.join(root, "spill", "0" * 16))
    monkeypatch.setattr(area_module, "file_system", lambda path: kind)
    with pytest.raises(OSError, match="shared"):
        opened()
    discover((root,))
    assert in_spill(root) == ["0" * 16]
    with pytest.raises(cs.RootError, match=f"cannot spill here:\n  {root}: .*shared"):
        open_tier("/nowhere/worker", (root,), "auto")
    monkeypatch.undo()
    discover((root,))
    assert in_spill(root) == []


def test_whoever_looks_for_stores_removes_dead_ones(root):
    """A worker that evicted a clean partition by link has an area in a store where none may ever spill again."""
    with other_process(root) as (child, directory):
        assert root in {ref.root for ref in discover((root,)).values()}
        assert os.listdir(directory) == ["0.part"]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        discover((root,))
        assert in_spill(root) == []


def test_forked_children(opened):
    """A forked child that ends, by whatever way, removes nothing of its parent's."""
    area = opened()
    with open(area.new_path(), "w"):
        pass
    script = f"""
import os, sys
{CHILD.split("print", maxsplit=1)[0]}
for end in (sys.exit, os._exit, lambda _: area.close()):
    if (pid := os.fork()) == 0:
        end(0)
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.listdir(area.directory) == ["0.part"], end
SpillArea(area.store)
assert os.listdir(area.directory) == ["0.part"]
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, area.store.root], check=True)
    assert os.listdir(area.directory) == ["0.part"]


def test_what_is_not_ours(opened, root):
    """Files and directories of other names stay, and links are not followed."""
    opened()
    spill = os.path.join(root, "spill")
    outside = os.path.join(root, "outside")
    os.makedirs(os.path.join(outside, "x"))
    os.makedirs(os.path.join(spill, "mine"))
    os.makedirs(os.path.join(spill, "ABCDEF0123456789"))
    os.symlink(outside, os.path.join(spill, "0" * 16))
    os.mkdir(os.path.join(spill, "2" * 16))
    with open(os.path.join(spill, "3" * 16), "w"):
        pass
    opened()
    assert os.path.isdir(os.path.join(outside, "x"))
    left = set(in_spill(root))
    assert {"mine", "ABCDEF0123456789", "0" * 16, "3" * 16} <= left
    assert "2" * 16 not in left


def test_many_at_once(root):
    """Processes that start at the same moment, while others that died are removed, leave each other's alone."""
    for n in range(20):  # dead ones
        path = os.path.join(root, "spill", f"{n:016x}")
        os.makedirs(path)
        with open(path + "/0.part", "w"):
            pass
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", CHILD, root]
        children = [stack.enter_context(subprocess.Popen(command, stdin=-1, stdout=-1, text=True)) for _ in range(4)]
        directories = [child.stdout.readline().strip() for child in children]
        assert all(os.listdir(directory) == ["0.part"] for directory in directories)
        assert len(in_spill(root)) == 4
        for child in children:
            child.stdin.close()
    assert in_spill(root) == []
