"""Task graphs: those of the collections to save, with write tasks at their ends, and layers of read tasks.

The private names of dask used for low-level graphs are all here: ``dask._task_spec`` (``Task``, ``Alias``, ``cull``,
``convert_legacy_graph``) has no public counterpart, and ``dask.base.collections_to_expr`` is what ``dask.compute`` uses
to optimise several frames together (``dask.optimize`` neither fuses them nor, in 2026.7.1, keeps their names apart).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from dask._task_spec import Alias, GraphNode, Task, TaskRef, convert_legacy_graph, cull
from dask.base import collections_to_expr
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer
from dask.utils import ensure_dict

from ckpt_spill.jobs import ReadJob, WriteJob
from ckpt_spill.manifest import ManifestData
from ckpt_spill.reading import read_partition
from ckpt_spill.tasks import as_container, write_partition

Graph = dict[Any, Any]


# ---------------------------------------------------------------------------------------------------------- writing
def optimized_frames(frames: Sequence[Any]) -> list[Any]:
    """Optimise dask-expr collections together; give their expressions, whose partitions are the real ones."""
    if len(frames) == 1:
        return [frames[0].optimize().expr]
    return list(collections_to_expr(list(frames)).optimize().operands) if frames else []


def task_graph(expressions: Sequence[Any], others: Sequence[Any]) -> Graph:
    """Merge the optimised graphs of expressions and of other collections so that work they share is there once.

    Fusion gives tasks new names. Collections of one optimiser are optimised as one, so what they share stays shared;
    those of different ones are left unfused when they come together.
    """
    graph: Graph = {}
    for expression in expressions:
        graph.update(expression.__dask_graph__())
    families: dict[Any, list[Any]] = {}
    for collection in others:
        families.setdefault(collection.__dask_optimize__, []).append(collection)
    mixed = len(families) + bool(expressions) > 1
    for optimize, members in families.items():
        merged = HighLevelGraph.merge(*(as_hlg(m) for m in members))
        keys = [k for m in members for k in flatten(m.__dask_keys__())]
        graph.update(ensure_dict(merged.cull(set(keys)) if mixed else optimize(merged, keys)))
    return dict(convert_legacy_graph(graph))


def as_hlg(collection: Any) -> HighLevelGraph:
    """Give a collection's graph as a high-level graph, whatever it keeps."""
    graph = collection.__dask_graph__()
    if isinstance(graph, HighLevelGraph):
        return graph
    return HighLevelGraph.from_collections(f"graph-{id(collection)}", graph, dependencies=())


def with_writes(graph: Graph, targets: Mapping[Any, tuple[Any, int, WriteJob]]) -> Graph:
    """Cut a graph down to what some write tasks need, and add them.

    A write task is fused with the task that makes its partition where nothing else wants that partition: then it is
    on disk and released before its thread takes up anything else.

    Parameters
    ----------
    graph : dict
    targets : mapping
        For the key of each write task: the key of what it writes, the partition's number, and the job.
    """
    real = {write: _resolve(graph, target) for write, (target, _, _) in targets.items()}
    needed = dict(cull(graph, list(set(real.values())))) if real else {}
    wanted = Counter(real.values())
    wanted.update(itertools.chain.from_iterable(node.dependencies for node in needed.values()))
    for write, (_, partition, job) in targets.items():
        source = real[write]
        task: GraphNode = Task(write, write_partition, TaskRef(source), partition, job)
        node = needed.get(source)
        if wanted[source] == 1 and type(node) is Task:
            del needed[source]
            task = Task.fuse(node, task, key=write)
        elif job.kind == "bag" and type(node) is Task:
            needed[source] = Task(source, as_container, node)  # an iterator can be read only once
        needed[write] = task
    return needed


def held_key(graph: Graph, key: Any) -> Any:
    """Give the key of a value that a cluster holds already, and gives under another key; None for what a task makes."""
    held = _resolve(graph, key)
    return None if held in graph else held


def _resolve(graph: Graph, key: Any) -> Any:
    while isinstance(node := graph.get(key), Alias):
        key = node.target
    return key


# ---------------------------------------------------------------------------------------------------------- reading
class ReadTask(Task):
    """A read. Not fused with what follows it, so that the scheduler can tell reads by their keys."""

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        """Keep low-level fusion away."""
        return True


def read_task(key: Any, manifest: ManifestData, partition: int, job: ReadJob) -> ReadTask:
    """Make the task that reads one partition; all tasks of a collection share the job."""
    entry = manifest.partitions[partition]
    # A data producer is queued by the scheduler whatever the size of its group.
    return ReadTask(key, read_partition, job, partition, entry.digest, entry.holders, _data_producer=True)


class ReadLayer(Layer):
    """All reads of a collection. Small and quick to pickle: a task is made when it is asked for.

    Parameters
    ----------
    manifest : ManifestData
    job : ReadJob
    numbering : callable
        Makes the map from the tasks' keys to partition numbers; it is pickled instead of the map.
    """

    def __init__(self, manifest: ManifestData, job: ReadJob, numbering: Callable[[], dict[Any, int]]) -> None:
        super().__init__()
        self._manifest, self._job, self._numbering = manifest, job, numbering
        self._numbers = numbering()

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadLayer, (self._manifest, self._job, self._numbering)

    def __getitem__(self, key: Any) -> ReadTask:
        return read_task(key, self._manifest, self._numbers[key], self._job)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, key: object) -> bool:
        return key in self._numbers

    def is_materialized(self) -> bool:
        """Tell dask that tasks are made on demand."""
        return False

    def get_output_keys(self) -> Set[Any]:
        """Give all keys."""
        return self._numbers.keys()

    def cull(self, keys: set[Any], all_hlg_keys: Collection[Any]) -> tuple[Layer, Mapping[Any, set[Any]]]:  # noqa: ARG002
        """Keep some reads; none depends on anything."""
        kept = {key: n for key, n in self._numbers.items() if key in keys}
        layer = self if len(kept) == len(self) else ReadLayer(self._manifest, self._job, functools.partial(dict, kept))
        return layer, {key: set() for key in kept}


def grid_keys(name: str, numblocks: Sequence[int]) -> dict[Any, int]:
    """Give the keys of a grid of blocks their numbers, in row-major order."""
    return {(name, *index): n for n, index in enumerate(itertools.product(*map(range, numblocks)))}


def row_keys(name: str, numbers: Iterable[int]) -> dict[Any, int]:
    """Give the keys of a row of partitions their numbers in the manifest, which has more if some are skipped."""
    return {(name, i): n for i, n in enumerate(numbers)}


def single_key(name: str) -> dict[Any, int]:
    """Give the one key of a Delayed its number."""
    return {name: 0}
