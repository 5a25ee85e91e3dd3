"""Which ways there are between a file and a device, and which of them may be taken."""

from __future__ import annotations

from typing import NamedTuple

from ckpt_spill.errors import RefusedError
from ckpt_spill.store.device import direct, hashes, libraries, nvcomp


class Paths(NamedTuple):
    """What is wanted, as configured: None takes a way where there is one, True insists on it, False does without.

    Attributes
    ----------
    gds : bool or None
        Raw blocks go between file and device by kvikio, without the host. None: where GPUDirect Storage is there, and
        not only kvikio's stand-in for it, which has no advantage over the way by the host.
    nvcomp : bool or None
        Compressed blocks are decoded on the device.
    """

    gds: bool | None = None
    nvcomp: bool | None = None

    def direct(self) -> bool:
        """Tell whether raw blocks may go between file and device directly.

        Raises
        ------
        RefusedError
            That is insisted on, and cannot be.
        """
        return self.gds is not False and _may("gds", self.gds, self._against_direct())

    def decoding(self) -> bool:
        """Tell whether compressed blocks may be decoded on the device.

        Raises
        ------
        RefusedError
            That is insisted on, and cannot be.
        """
        return self.nvcomp is not False and _may("nvcomp", self.nvcomp, self._against_decoding())

    def _against_direct(self) -> str:
        if not libraries.has_device():
            return "there is no GPU here that CuPy finds"
        mode = direct.mode()
        if not mode:
            return "kvikio cannot be used here: install it"
        if mode == "compat" and not self.gds:
            return "GPUDirect Storage is not set up"
        return (
            ""
            if hashes.trusted()
            else "this GPU's checksums cannot be relied on (see the log), or not tried for want of memory"
        )

    def _against_decoding(self) -> str:
        if not libraries.has_device():
            return "there is no GPU here that CuPy finds"
        try:
            nvcomp.import_library()
        except ImportError:
            return "nvidia-nvcomp cannot be imported here: install it"
        return (
            "" if nvcomp.trusted() else "nvCOMP does not work here (see the log), or was not tried for want of memory"
        )


def _may(name: str, wanted: bool | None, reason: str) -> bool:  # noqa: FBT001
    if reason and wanted:
        raise RefusedError(f"ckpt-spill.{name} is true, but {reason}. Or set it to null, which takes what there is")
    return not reason


ANY = Paths()
"""Whatever way there is."""
