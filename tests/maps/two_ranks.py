"""`relograph` with generated features, as test_ranks.py starts it twice; the second process may be told to die."""

import os
import signal

import pytest
from made_maps import no_network, use_generated_features

from relograph.cli import main
from relograph.maps import adding
from relograph.models import shipped

SHARDS_UNTIL_DEATH = "SHARDS_UNTIL_DEATH"


def die_after(num_shards: int, patch: pytest.MonkeyPatch) -> None:
    encode, left = adding.encode, iter(range(num_shards))

    def encode_or_die(*given: object) -> object:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(*given)

    patch.setattr(adding, "encode", encode_or_die)


if __name__ == "__main__":
    patch = pytest.MonkeyPatch()
    use_generated_features(patch)
    patch.setattr(shipped, "load_match_gnn", lambda weights: no_network())
    if os.environ["RANK"] == "1" and SHARDS_UNTIL_DEATH in os.environ:
        die_after(int(os.environ[SHARDS_UNTIL_DEATH]), patch)
    main()
