"""The manifests in a store: a generation is committed once it has one, and is the run's that the manifest names.

Several runs may have tried a generation; the file name is the same for all of them, so only one gets it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Iterator, Mapping

from ckpt_spill.store import marker
from ckpt_spill.store.files import held, make_directory, write_atomic, write_once
from ckpt_spill.store.layout import CHECKPOINTS, checkpoint_path, manifest_path, names_in, run_path, sizes_in
from ckpt_spill.store.runs import Run, parse_manifest_file


@dataclasses.dataclass(frozen=True)
class Manifests:
    """The manifests in the store at a root."""

    root: str

    # ------------------------------------------------------------------------------------------------- looking
    def read(self, checkpoint: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Paths and contents of the manifests of the committed generations of one checkpoint, or of all."""
        top = os.path.join(self.root, CHECKPOINTS)
        every = (os.path.join(top, name) for name in sorted(names_in(top)))
        for directory in every if checkpoint is None else [checkpoint_path(self.root, checkpoint)]:
            yield from _read_all(directory)

    def runs(self, checkpoint: str) -> set[Run]:
        """Give the committed runs of a checkpoint."""
        return {run for _, content in self.read(checkpoint) if (run := _run_of(checkpoint, content))}

    def is_committed(self, run: Run) -> bool:
        """Tell whether the manifest of the run's generation is the run's."""
        return run in self.runs(run.checkpoint)

    def latest(self, checkpoint: str) -> int:
        """Give the highest generation that has a manifest, sound or not; 0 for none."""
        names = names_in(checkpoint_path(self.root, checkpoint))
        return max((n for name in names if (n := parse_manifest_file(name)) is not None), default=0)

    # ------------------------------------------------------------------------------------------------- writing
    def put(
        self, run: Run, manifest: bytes, expected: Mapping[str, int], *, durable: bool, amend: bool = False
    ) -> bool:
        """Write the manifest where the generation has none, or replace an earlier revision of the same run.

        Parameters
        ----------
        run : Run
        manifest : bytes
        expected : mapping of str to int
            Names of the run's partition files that have to be there, and their sizes in bytes.
        durable : bool
            Whether it has to survive a power cut.
        amend : bool
            Whether there has to be an earlier revision: where the run was deleted meanwhile, there is none.

        Returns
        -------
        bool
            False where the generation is another run's, where a later one, or a revision that is no earlier, is there,
            where none is there to amend, and where files that are expected are gone.
        """
        path = manifest_path(self.root, run)
        with marker.kept(self.root):
            make_directory(os.path.dirname(path))
            while True:
                # Who removes a run removes its manifest first: while that is held, the files that are there stay.
                with held(path) as before:
                    if before is not None:
                        ours = _run_of(run.checkpoint, before) == run and _revision_of(before) < _revision_of(manifest)
                        if not ours or not self._is_whole(run, expected):
                            return False
                        write_atomic(path, manifest, durable=durable)
                        return True
                if amend or self.latest(run.checkpoint) > run.generation:
                    return False
                if write_once(path, manifest, durable=durable):
                    break
        # While nobody had the generation, one who had it may have come and gone and removed what is ours.
        if self._is_whole(run, expected):
            return True
        self.remove(run, _revision_of(manifest))
        return False

    def _is_whole(self, run: Run, expected: Mapping[str, int]) -> bool:
        """Tell whether a run has its files and no later generation is there."""
        if self.latest(run.checkpoint) > run.generation:
            return False
        return expected.items() <= sizes_in(run_path(self.root, run)).items()

    # ------------------------------------------------------------------------------------------------- removing
    def remove(self, run: Run, revision: int | None = None) -> None:
        """Remove the manifest of a generation if it is this run's, and of this revision where one is given."""
        path = manifest_path(self.root, run)
        with held(path) as content:
            if content is None or _run_of(run.checkpoint, content) != run:
                return
            if revision in (None, _revision_of(content)):
                os.unlink(path)

    def remove_damaged(self, run: Run) -> None:
        """Remove the manifests of generations earlier than a run's that nobody can read."""
        for path, content in self.read(run.checkpoint):
            generation = parse_manifest_file(os.path.basename(path))
            if generation is not None and generation < run.generation and _run_of(run.checkpoint, content) is None:
                os.unlink(path)


def _read_all(directory: str) -> list[tuple[str, bytes]]:
    """Read the manifests in a checkpoint's directory; when one is replaced meanwhile, look again."""
    while True:
        paths = [os.path.join(directory, n) for n in sorted(names_in(directory)) if parse_manifest_file(n) is not None]
        try:
            return [(path, _read(path)) for path in paths if stat.S_ISREG(os.lstat(path).st_mode)]
        except FileNotFoundError:
            continue


def _read(path: str) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        return file.read()


def _run_of(checkpoint: str, manifest: bytes) -> Run | None:
    """Give the run that a manifest belongs to; None for a damaged one."""
    try:
        body = json.loads(manifest)["body"]
        return Run(checkpoint, int(body["generation"]), str(body["identity"]), str(body["run"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _revision_of(manifest: bytes) -> int:
    """Give the revision that a manifest of a known run is."""
    return int(json.loads(manifest)["body"].get("revision", 0))
