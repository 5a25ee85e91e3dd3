"""Putting the plugins into a cluster that runs. The scheduler's brings the workers'.

``Client.scheduler``, through which a client asks a scheduler anything, is not documented.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from distributed import Client

from ckpt_spill.cluster.scheduler import Steering
from ckpt_spill.cluster.sight import NAME
from ckpt_spill.errors import RefusedError

logger = logging.getLogger("ckpt_spill")


def install(client: Client, roots: Sequence[str] = ()) -> None:
    """Install the plugins, where they are not yet, and let all workers look for stores.

    Parameters
    ----------
    client : distributed.Client
        A synchronous one.
    roots : sequence of str
        Where to look besides each worker's configured roots.

    Raises
    ------
    RefusedError
        The scheduler does not take it.
    """
    try:
        if not client.get_metadata([NAME], default=None):
            client.register_plugin(Steering())
        client.sync(_look, client, list(roots))
    except Exception as e:
        raise RefusedError(
            f"the scheduler of {client} does not take the plugin that steers reads to where their "
            f"files are ({type(e).__name__}: {str(e)[:200]}). Install ckpt_spill where it runs, or start it with "
            "`dask scheduler --preload ckpt_spill.cluster.scheduler`"
        ) from e


async def _look(client: Any, roots: list[str]) -> None:
    await client.scheduler.ckpt_spill_look(roots=roots)
