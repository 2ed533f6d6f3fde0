"""Other people's ways to match points between photos, on the same photos as ours and with the same code behind them."""

from relograph.evaluation.peers.matching import PEERS, Peer, match_by_peer
from relograph.evaluation.peers.protocol import JobMatches, Matcher, MatchJob, run_job
from relograph.evaluation.peers.solving import PEER_SOLVERS, PeerSolver, poselib_pose

__all__ = [
    "PEERS",
    "PEER_SOLVERS",
    "JobMatches",
    "MatchJob",
    "Matcher",
    "Peer",
    "PeerSolver",
    "match_by_peer",
    "poselib_pose",
    "run_job",
]
