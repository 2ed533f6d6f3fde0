"""A network together with its loss: what is differentiated in a training step."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from relograph.models import PoseModel
from relograph.retrieval import NetVLAD, covisibility_loss, expected_error_loss
from relograph.training.config import RetrievalConfig
from relograph.training.losses import PoseLoss, pose_distance


class Objective(nn.Module):
    """A network with its losses, as the training loop sees it; weights called `loss.` have no weight decay."""

    def watched(self) -> dict[str, Tensor]:
        """Numbers that the log follows, always the same ones."""
        raise NotImplementedError

    def learned_apart(self) -> list[list[nn.Parameter]]:
        """Weights in groups that no gradient connects: one's large gradient is no reason to shorten another's."""
        return [list(self.parameters())]


def clip_gradients(objective: Objective, largest_norm: float) -> Float[Tensor, "groups"]:
    """Shorten gradients to a norm, without asking a GPU what it is. The norms that they had."""
    groups = objective.learned_apart()
    return torch.stack([torch.nn.utils.clip_grad_norm_(weights, largest_norm) for weights in groups])


class PoseObjective(Objective):
    """The pose loss of a network on graphs and, if it is trained along, NetVLAD's."""

    def __init__(
        self, model: PoseModel, netvlad: NetVLAD | None = None, retrieval: RetrievalConfig | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = PoseLoss()
        self.retrieval = retrieval or RetrievalConfig()
        self.netvlad = netvlad

    def watched(self) -> dict[str, Tensor]:
        """The learned weights of the loss."""
        return {"beta": self.loss.beta.detach(), "gamma": self.loss.gamma.detach()}

    def forward(
        self,
        images: Tensor,
        node_mask: Bool[Tensor, "B N"],
        edge_mask: Bool[Tensor, "B N N"],
        edge_targets: Float[Tensor, "B N N 6"],
        node_targets: Float[Tensor, "B N 6"],
        overlap: Float[Tensor, "B N"],
        scene_idx: Int[Tensor, "B"],
        num_edges: Float[Tensor, ""],
        num_nodes: Float[Tensor, ""],
    ) -> Float[Tensor, ""]:
        """The loss of images [B, N, H, W, 3], to be minimised.

        The pose loss is divided by `num_edges` and `num_nodes` and not by what is in this batch: where a batch is
        spread over several processes, every edge of the whole batch weighs the same.
        """
        graphs = images.shape[:2]
        feature_map = self.model.encoder.feature_map(images.flatten(0, 1))
        x = self.model.encoder.pool(feature_map).reshape(*graphs, -1)
        predictions = self.model.decode(x, node_mask, edge_mask)
        total = x.new_zeros((), dtype=torch.float32)
        if predictions.edges is not None:
            total = total + self.loss(predictions.edges, edge_targets, edge_mask) / num_edges
        if predictions.nodes is not None:
            total = total + self.loss(predictions.nodes, node_targets, node_mask) / num_nodes
        if self.netvlad is not None and self.retrieval.loss != "none":
            descriptors = self.netvlad(feature_map).reshape(*graphs, -1)
            if self.retrieval.loss == "covisibility":
                elsewhere = scene_idx[:, None] != scene_idx
                term = covisibility_loss(descriptors, overlap, node_mask, negatives=elsewhere)
            else:
                assert predictions.edges is not None
                error = pose_distance(predictions.edges.detach()[:, :, 0], edge_targets[:, :, 0])
                term = expected_error_loss(descriptors, error, node_mask)
            total = total + self.retrieval.loss_weight * term
        return total
