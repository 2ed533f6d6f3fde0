"""The paper's loss: translation and rotation errors weighed by two learned numbers."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

INITIAL_BETA = 0.0
INITIAL_GAMMA = -3.0


def pose_distance(
    prediction: Float[Tensor, "*B 6"],
    target: Float[Tensor, "*B 6"],
    beta: Tensor | float = INITIAL_BETA,
    gamma: Tensor | float = INITIAL_GAMMA,
) -> Float[Tensor, "*B"]:
    r"""|t - t*|_1 e^-beta + beta + |log q - log q*|_1 e^-gamma + gamma of each pose.

    With the default weights, which are the ones that training starts from, this is the fixed loss that ranks answers
    and compares models.
    """
    beta, gamma = torch.as_tensor(beta), torch.as_tensor(gamma)
    error = (prediction.float() - target).abs()
    translation, rotation = error[..., :3].sum(dim=-1), error[..., 3:].sum(dim=-1)
    return translation * torch.exp(-beta) + beta + rotation * torch.exp(-gamma) + gamma


class PoseLoss(nn.Module):
    """The distance of Kendall and Cipolla between poses, with weights beta and gamma that are learned along."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(INITIAL_BETA))
        self.gamma = nn.Parameter(torch.tensor(INITIAL_GAMMA))

    def forward(
        self, prediction: Float[Tensor, "*B 6"], target: Float[Tensor, "*B 6"], mask: Bool[Tensor, "*B"]
    ) -> Float[Tensor, ""]:
        """The sum of the distances over the poses of `mask`; the caller divides, who knows the whole batch."""
        distance = pose_distance(prediction, target, self.beta, self.gamma)
        return distance.masked_fill(~mask, 0).sum()
