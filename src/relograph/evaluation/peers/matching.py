"""The peers by name."""

from typing import Literal, get_args

from relograph.errors import ConfigError
from relograph.evaluation.peers.protocol import JobMatches, MatchJob, run_job
from relograph.evaluation.peers.separate import match_separately, peers_python
from relograph.evaluation.peers.sift import Sift
from relograph.progress import SILENT, Progress

Peer = Literal["sift", "xfeat", "xfeat+lighterglue", "aliked+lightglue"]
PEERS: dict[Peer, str] = {
    "sift": "SIFT",
    "xfeat": "XFeat",
    "xfeat+lighterglue": "XFeat + LighterGlue",
    "aliked+lightglue": "ALIKED + LightGlue",
}
"""What tables call them."""


def parse_peers(names: str) -> tuple[Peer, ...]:
    """The peers in a list with commas, once it is known that each can be run here.

    Example:
        >>> parse_peers("sift, sift")
        ('sift',)
    """
    wanted = list(dict.fromkeys(filter(None, (name.strip() for name in names.split(",")))))
    for name in wanted:
        if name not in get_args(Peer):
            raise ConfigError(f"--peers: expected names among {', '.join(PEERS)}, found {name!r}. Correct it.")
        if name == "sift":
            Sift()
        else:
            peers_python()
    return tuple(peer for name in wanted for peer in PEERS if peer == name)


def match_by_peer(peer: Peer, job: MatchJob, *, progress: Progress = SILENT) -> JobMatches:
    """The matches of a peer: SIFT's in this process, those of the others in one of their own."""
    with progress.task(f"matching with {PEERS[peer]}", total=job.num_steps) as advance:
        if peer == "sift":
            return run_job(Sift(), job, advance)
        return match_separately(peer, job, advance)
