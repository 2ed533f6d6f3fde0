"""The paper's sections 3.2 to 3.4 a second time: sparse, on PyTorch Geometric, each equation as it is printed."""

import warnings

import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it scripts some of its classes with torch.jit on import
    from torch_geometric.nn import MessagePassing

# Our names of the layers, by the names they have here.
OURS = {
    "f_proj.0": "edge_init",
    "f_edge.0": "message_passing.edge_in",
    "f_edge.2": "message_passing.edge_out",
    "f_msg.0": "message_passing.message_in",
    "f_msg.2": "message_passing.message_out",
    "W_theta": "message_passing.attention.theta",
    "W_phi": "message_passing.attention.phi",
    "W_f": "message_passing.attention.f",
    "W_g": "message_passing.attention.g",
    "f_upd.0": "message_passing.update_in",
    "f_upd.2": "message_passing.update_out",
    "W_pose": "pose_head",
}


def two_layers(in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(in_channels, channels), nn.ReLU(), nn.Linear(channels, channels))


class PaperOnPyG(MessagePassing):
    """Node i receives from its neighbours j; an edge is a column (j, i) of `edge_index`."""

    def __init__(self, channels: int, aggregation: str) -> None:
        super().__init__(aggr=aggregation, flow="source_to_target")
        self.f_proj = nn.Sequential(nn.Linear(2 * channels, channels), nn.ReLU())
        self.f_edge = two_layers(3 * channels, channels)
        self.f_msg = two_layers(2 * channels, channels)
        self.W_theta = nn.Linear(channels, channels // 8)
        self.W_phi = nn.Linear(channels, channels // 8)
        self.W_f = nn.Linear(channels, channels // 8)
        self.W_g = nn.Linear(channels // 8, channels)
        self.f_upd = two_layers(2 * channels, channels)
        self.W_pose = nn.Linear(channels, 6)

    def load_ours(self, state: dict[str, Tensor]) -> None:
        """The weights of a `RelPoseGNN`."""
        kinds = ("weight", "bias")
        self.load_state_dict(
            {f"{here}.{kind}": state[f"{ours}.{kind}"] for here, ours in OURS.items() for kind in kinds}
        )

    def edge_update(self, edge: Tensor, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.f_edge(torch.cat([edge, x_i, x_j], dim=-1))

    def message(self, edge: Tensor, x_j: Tensor) -> Tensor:
        m = self.f_msg(torch.cat([edge, x_j], dim=-1))  # [E, C]
        attention = torch.softmax(self.W_theta(m)[:, :, None] @ self.W_phi(m)[:, None, :], dim=-1)  # [E, C/8, C/8]
        return m + self.W_g((attention @ self.W_f(m)[:, :, None]).squeeze(-1))

    def update(self, aggregated: Tensor, x: Tensor) -> Tensor:
        return self.f_upd(torch.cat([x, aggregated], dim=-1))

    def forward(self, x: Tensor, edge_index: Tensor, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes, edges and the poses of the edges after some rounds."""
        j, i = edge_index
        edge = self.f_proj(torch.cat([x[i], x[j]], dim=-1))
        for _ in range(rounds):
            edge = self.edge_updater(edge_index, edge=edge, x=x)
            x = self.propagate(edge_index, edge=edge, x=x)
        return x, edge, self.W_pose(edge)
