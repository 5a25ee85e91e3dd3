"""What the package promises by its shape: public names, signatures, the tree of errors, who may import whom."""

from __future__ import annotations

import ast
import inspect
import pickle
from pathlib import Path

import pytest

import ckpt_spill as cs

PACKAGE = Path(cs.__file__).parent

# Each module may import only those on the lines above its own.
LAYERS = [
    {"errors"},
    {"config"},
    {"store"},
    {"jobs", "ongoing", "here"},
    {"clean", "room"},
    {"cluster", "spill"},
    {"tasks", "reading"},
    {"errands"},
    {"hosts", "table"},
    {"manifest"},
    {"graph"},
    {"expr"},
    {"collections", "progress", "reach", "copying", "placement"},
    {"replicas", "commit"},
    {"upkeep"},
    {"catalog"},
    {"plans"},
    {"linking"},
    {"saving"},
    {"persist"},
    {"rehydrate"},
    {"compat"},
    {"__init__"},
]


def test_public_names():
    """The package gives exactly the documented names, each with a docstring."""
    errors = (
        "CkptSpill Refused UnsupportedCollection Root CheckpointExists CheckpointNotFound Manifest Write DiskFull "
        "Unserializable Conflict Read CorruptPartition MissingPartition"
    )
    functions = ["persist_to_disk", "rehydrate", "checkpoint", "list_checkpoints", "host_spill", "device_spill"]
    classes = ["Manifest", "DataFrameCheckpoint"]
    assert set(cs.__all__) == {f"{name}Error" for name in errors.split()} | {*functions, *classes}
    assert all(getattr(cs, name).__doc__ for name in cs.__all__)


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (
            cs.persist_to_disk,
            (
                "*collections, name=None, token=None, root=None, codec='auto', durable=True, overwrite=False, "
                "replicas=1, manifest=None, progress=None, client=None"
            ),
        ),
        (
            cs.rehydrate,
            "manifest, *, columns=None, backend=None, root=None, missing='error', source=None, client=None",
        ),
        (cs.checkpoint, "collection, name, *, backend=None, **kwargs"),
        (cs.list_checkpoints, "root=None, client=None"),
        (cs.host_spill, "root=None, *, memory_limit=None, codec='auto'"),
        (cs.device_spill, "root=None, *, device_memory_limit='default', memory_limit=None, codec='auto'"),
        (cs.Manifest.verify, "self, client=None"),
        (cs.Manifest.delete, "self, client=None"),
        (cs.Manifest.replicate, "self, replicas, client=None"),
        (cs.Manifest.repair, "self, client=None"),
        (cs.Manifest.save, "self, url"),
        (cs.Manifest.load, "url"),
        (cs.DataFrameCheckpoint.create, "df, path, *, overwrite=True, **options"),
        (cs.DataFrameCheckpoint.load, "self, **options"),
    ],
)
def test_signatures(function, signature):
    """Parameters, their order and defaults are frozen, and every one is described."""
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    assert str(inspect.Signature(parameters)) == f"({signature})"
    for p in parameters:
        assert p.name == "self" or f"{p.name} :" in function.__doc__ or f"{p}\n" in function.__doc__


def test_error_tree():
    """Errors are grouped by what the catcher does, and keep the built-in types they refine."""
    tree = {
        cs.RefusedError: {
            cs.UnsupportedCollectionError: TypeError,
            cs.RootError: OSError,
            cs.CheckpointExistsError: FileExistsError,
            cs.CheckpointNotFoundError: FileNotFoundError,
            cs.ManifestError: ValueError,
        },
        cs.WriteError: {cs.DiskFullError: OSError, cs.UnserializableError: TypeError, cs.ConflictError: Exception},
        cs.ReadError: {cs.CorruptPartitionError: ValueError, cs.MissingPartitionError: FileNotFoundError},
    }
    for group, members in tree.items():
        assert group.__bases__ == (cs.CkptSpillError,)
        for error, builtin in members.items():
            assert issubclass(error, group)
            assert issubclass(error, builtin)


@pytest.mark.parametrize("error", [getattr(cs, n) for n in cs.__all__ if n.endswith("Error")])
def test_errors_pickle(error):
    """An error crosses from a worker to the client with its message and details."""
    back = pickle.loads(pickle.dumps(error("what, where, way out", path="/x", partitions=[1])))
    assert type(back) is error
    assert (str(back), back.path, back.partitions) == ("what, where, way out", "/x", [1])


def test_imports_point_down():
    """No module imports one that is above it or beside it."""
    height = {name: n for n, layer in enumerate(LAYERS) for name in layer}
    parts = {"store", "cluster", "spill"}
    modules = {p.stem for p in PACKAGE.glob("*.py")} | parts
    assert modules == height.keys()
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for imported in imports(path):
            inside = own == imported and own in parts
            assert inside or height[imported] < height[own], f"{path} imports {imported}"


def test_store_knows_nothing_of_dask():
    """What is on disk can be read without dask."""
    for path in (PACKAGE / "store").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.split(".")[0] in ("dask", "distributed") for n in names), path


def imports(path):
    """Modules of the package that a file imports, by the first part of their name; types-only imports count."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ckpt_spill":
            if node.module == "ckpt_spill":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.split(".")[1]
