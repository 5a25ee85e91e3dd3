"""Which ways there are between a file and a device, and which of them may be taken."""

from __future__ import annotations

from typing import NamedTuple

from ckpt_spill.errors import RefusedError
from ckpt_spill.store.device import direct, hashes, nvcomp


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
        if self.gds is False:
            return False
        mode = direct.mode()
        usable = mode == "gds" or (mode == "compat" and bool(self.gds))
        if usable and hashes.trusted():
            return True
        if self.gds:
            why = "the checksums that this GPU computes are wrong" if usable else "kvikio cannot be used here"
            raise RefusedError(f"ckpt-spill.gds is true, but {why}: install kvikio, or leave it out")
        return False

    def decoding(self) -> bool:
        """Tell whether compressed blocks may be decoded on the device.

        Raises
        ------
        RefusedError
            That is insisted on, and cannot be.
        """
        if self.nvcomp is False:
            return False
        if nvcomp.trusted():
            return True
        if self.nvcomp:
            raise RefusedError(
                "ckpt-spill.nvcomp is true, but nvidia-nvcomp cannot be used here: install it, or leave it out"
            )
        return False


ANY = Paths()
"""Whatever way there is."""
