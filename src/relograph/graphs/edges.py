"""Edge dropout: a graph that a network is trained on misses some of its edges."""

import torch
from jaxtyping import Bool
from torch import Generator, Tensor


def drop_edges(
    edge_mask: Bool[Tensor, "B N N"], rate: float, generator: Generator | None = None
) -> Bool[Tensor, "B N N"]:
    """`edge_mask` without a random share `rate` of its pairs, both directions together, but never without all of them.

    The same edges are to be left out of the messages and of the loss. `generator` lives on the device of the mask.
    """
    if rate == 0:
        return edge_mask
    luck = torch.rand(edge_mask.shape, generator=generator, device=edge_mask.device).triu(1)
    luck = (luck + luck.mT).masked_fill(~edge_mask, -1)  # one draw for a pair
    luckiest = luck.amax(dim=(1, 2), keepdim=True)
    return edge_mask & ((luck >= rate) | (luck == luckiest))
