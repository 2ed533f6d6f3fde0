"""What makes descriptors good for localization: near where images see the same things, or where poses come out right.

In every graph node 0 is the query and the others are its references. The similarities of the query to its references,
divided by a temperature, are the logits of a softmax; a learned temperature is passed as a tensor.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize


def covisibility_loss(
    descriptors: Float[Tensor, "B N D"],
    overlap: Float[Tensor, "B N"],
    node_mask: Bool[Tensor, "B N"],
    *,
    negatives: Bool[Tensor, "B B"] | None = None,
    temperature: float | Float[Tensor, ""] = 0.1,
) -> Float[Tensor, ""]:
    """Cross entropy between the shares of overlap and the softmax of similarity, averaged over graphs.

        L = - sum_j  o_j / (sum_k o_k)  log softmax_j(d_0 . d_j / temperature)

    A graph in which the query overlaps with no reference says nothing and does not count.

    Args:
        overlap: How much of the query each node sees, within [0, 1]; what stands at node 0 is not looked at.
        negatives: [b, c] is true where no image of graph c can be seen from query b, because it is of another scene:
            the references of graph c then join the softmax of graph b with a share of zero.
    """
    d = _unit_descriptors(descriptors)
    is_reference = _is_reference(node_mask)
    logits = _query_logits(d, is_reference, temperature)
    if negatives is not None:
        elsewhere = (negatives[:, :, None] & is_reference).flatten(1)  # [B, BN]
        with torch.autocast(d.device.type, enabled=False):  # bfloat16 would round cosines by more than they differ
            cosine = d[:, 0] @ d.flatten(0, 1).T  # [B, BN]
        logits = torch.cat([logits, _where_or_never(elsewhere, cosine / temperature)], dim=1)  # [B, N + BN]
    return _surprise(logits, torch.where(is_reference, overlap, 0.0))


def covisibility_loss_of_images(
    descriptors: Float[Tensor, "M D"],
    overlap: Float[Tensor, "M M"],
    *,
    temperature: float | Float[Tensor, ""] = 0.1,
) -> Float[Tensor, ""]:
    """The same for M images, each of which looks for what it sees among all the others.

    Args:
        overlap: [a, b] is how much of image a image b sees, within [0, 1]; the diagonal is not looked at.
    """
    d = _unit_descriptors(descriptors)
    is_other = ~torch.eye(len(d), dtype=torch.bool, device=d.device)
    with torch.autocast(d.device.type, enabled=False):
        cosine = d @ d.T
    return _surprise(_where_or_never(is_other, cosine / temperature), torch.where(is_other, overlap, 0.0))


def expected_error_loss(
    descriptors: Float[Tensor, "B N D"],
    edge_error: Float[Tensor, "B N"],
    node_mask: Bool[Tensor, "B N"],
    *,
    temperature: float | Float[Tensor, ""] = 0.1,
) -> Float[Tensor, ""]:
    """The error of the query's pose if its reference were drawn by similarity, averaged over graphs.

        L = sum_j  softmax_j(d_0 . d_j / temperature)  error_j

    This ties retrieval to the pose loss: the gradient makes a query similar to the references from which its pose comes
    out right. It also reaches the errors; detach them to train the descriptors alone. It fades where the softmax is all
    but certain of a wrong reference: a temperature as wide as the similarities differ keeps it alive.

    Args:
        edge_error: Loss of the edge [reference, 0] of each reference; what stands at node 0 or in the padding, be it
            NaN, is not looked at.
    """
    is_reference = _is_reference(node_mask)
    chance = _query_logits(_unit_descriptors(descriptors), is_reference, temperature).softmax(dim=1)
    return _mean_where(is_reference.any(dim=1), (chance * torch.where(is_reference, edge_error, 0.0)).sum(dim=1))


def _surprise(logits: Float[Tensor, "B M"], overlap: Float[Tensor, "B N"]) -> Float[Tensor, ""]:
    """Cross entropy between shares of overlap and the softmax of M logits, of which the first N may have a share."""
    total = overlap.sum(dim=1)
    share = overlap / torch.where(total > 0, total, 1.0)[:, None]
    cross_entropy = -(share * logits.log_softmax(dim=1)[:, : overlap.shape[1]]).sum(dim=1)
    return _mean_where(total > 0, cross_entropy)


def _unit_descriptors(descriptors: Float[Tensor, "*S D"]) -> Float[Tensor, "*S D"]:
    return normalize(descriptors.to(torch.promote_types(descriptors.dtype, torch.float32)), dim=-1)


def _is_reference(node_mask: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Every node that is no padding, but the query."""
    return node_mask & (torch.arange(node_mask.shape[1], device=node_mask.device) > 0)


def _query_logits(
    d: Float[Tensor, "B N D"], is_reference: Bool[Tensor, "B N"], temperature: float | Float[Tensor, ""]
) -> Float[Tensor, "B N"]:
    return _where_or_never(is_reference, (d[:, :1] * d).sum(dim=-1) / temperature)


def _where_or_never(allowed: Bool[Tensor, "*S"], logits: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """The logits, or the lowest number: unlike -inf it leaves no NaN in a graph without references."""
    return logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)


def _mean_where(counts: Bool[Tensor, "B"], loss: Float[Tensor, "B"]) -> Float[Tensor, ""]:
    """Mean over the graphs that count, 0 if none does; without asking the GPU how many there are."""
    return torch.where(counts, loss, 0.0).sum() / counts.sum().clamp_min(1)
