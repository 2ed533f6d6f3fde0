"""The networks: the paper's, and those that it is compared with."""

from relograph.models.answering import RawAnswers, answer_graphs, encode_rows
from relograph.models.baselines import AbsolutePoseNet, PairMLP, SequenceGNN
from relograph.models.building import ModelConfig, build_model
from relograph.models.encoder import ResNet
from relograph.models.relpose_gnn import PoseModel, PosePredictions, RelPoseGNN, all_edges

__all__ = [
    "AbsolutePoseNet",
    "ModelConfig",
    "PairMLP",
    "PoseModel",
    "PosePredictions",
    "RawAnswers",
    "RelPoseGNN",
    "ResNet",
    "SequenceGNN",
    "all_edges",
    "answer_graphs",
    "build_model",
    "encode_rows",
]
