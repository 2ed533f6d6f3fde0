"""poses.csv: any axes and direction, as long as its header says which."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image
from scipy.spatial.transform import Rotation
from tiny_scenes import CX, CY, FRAMES, FX, FY, HEIGHT, WIDTH, write_photo

from relograph.errors import DatasetError, RelographError
from relograph.geometry import Camera
from relograph.scenes import poses_csv

QUAT_HEADER = "name,tx,ty,tz,qw,qx,qy,qz"


@pytest.fixture
def read_csv(tmp_path):
    """Reads a scene of one photo, photo.png, from the text of its poses.csv."""
    write_photo(tmp_path / "photo.png")

    def read(text: str, **options: bool) -> poses_csv.Scene:
        (tmp_path / "poses.csv").write_text(text)
        return poses_csv.read(tmp_path, **options)

    return read


def declared(axes: str = "opencv", direction: str = "world_from_camera") -> str:
    return f"# camera axes: {axes}\n# direction: {direction}\n"


def test_cameras_stand_and_look_where_scipy_says(tiny_scene):
    scene = poses_csv.read(tiny_scene("poses.csv"))
    assert [frame.name for frame in scene] == [frame.name for frame in FRAMES]
    assert_allclose(scene.T_world_cam.t, [frame.centre for frame in FRAMES], atol=1e-12)
    assert_allclose(scene.T_world_cam.R[..., 2], [frame.view_direction for frame in FRAMES], atol=1e-12)
    assert [frame.split for frame in scene] == ["train", "train", "test", "test"]
    assert list(scene.sequences) == ["seq-01", "seq-02"]
    assert scene[0].camera == Camera(WIDTH, HEIGHT, FX, FY, CX, CY)


@pytest.mark.parametrize(
    ("axes", "forward", "down"),
    [
        ("opencv", [0, 0, 1], [0, 1, 0]),
        ("right down forward", [0, 0, 1], [0, 1, 0]),
        ("opengl", [0, 0, -1], [0, -1, 0]),
        ("Right, Up, Back", [0, 0, -1], [0, -1, 0]),
        ("ros", [1, 0, 0], [0, 0, -1]),
        ("left up forward", [0, 0, 1], [0, -1, 0]),
        ("down right back", [0, 0, -1], [1, 0, 0]),
    ],
)
def test_an_unrotated_camera_looks_along_the_axis_declared_forward(read_csv, axes, forward, down):
    """With the identity as rotation, the file's camera axes are the world's, so the declaration can be read off."""
    frame = read_csv(declared(axes) + QUAT_HEADER + "\nphoto.png,1,2,3,1,0,0,0\n")[0]
    assert_allclose(frame.T_world_cam.R[:, 2], forward)
    assert_allclose(frame.T_world_cam.R[:, 1], down)
    assert_allclose(frame.T_world_cam.t, [1, 2, 3])


def test_unity_poses_are_mirrored_in_the_third_world_coordinate(read_csv):
    """By hand. Unity: x right, y up, z forward, left-handed; a turn of 90 degrees about y takes forward to right.

    So this camera looks along Unity's +x, and stands at z = 3. Mirrored: it still looks along +x, stands at z = -3, up
    is still +y, and its right hand, Unity's -z, becomes +z: right-handed, as right x down = forward.
    """
    turn = f"{np.sqrt(0.5)},0,{np.sqrt(0.5)},0"
    frame = read_csv(declared("unity") + QUAT_HEADER + f"\nphoto.png,1,2,3,{turn}\n")[0]
    right, down, forward = frame.T_world_cam.R.T
    assert_allclose(frame.T_world_cam.t, [1, 2, -3])
    assert_allclose(forward, [1, 0, 0], atol=1e-15)
    assert_allclose(down, [0, -1, 0], atol=1e-15)
    assert_allclose(right, [0, 0, 1], atol=1e-15)


def test_distances_and_viewing_angles_survive_the_mirror(read_csv, tmp_path):
    """A mirrored scene is the same scene: what one camera sees of another one keeps its place in the picture."""
    write_photo(tmp_path / "second.png")
    rotations = Rotation.random(2, random_state=0)
    centres = np.array([[0.0, 1.0, 2.0], [3.0, -1.0, 0.5]])
    rows = [
        ",".join(map(str, [name, *centre, *np.roll(rotation.as_quat(), 1)]))
        for name, centre, rotation in zip(("photo.png", "second.png"), centres, rotations, strict=True)
    ]
    scene = read_csv(declared("unity") + QUAT_HEADER + "\n" + "\n".join(rows))
    x_right, y_up, z_forward = rotations[0].inv().apply(centres[1] - centres[0])
    assert_allclose(scene[0].T_world_cam.inverse().apply(scene[1].T_world_cam.t), [x_right, -y_up, z_forward])


@pytest.mark.parametrize("axes", ["opencv", "opengl"])
def test_camera_from_world_is_the_inverse(read_csv, axes):
    R_world_file, centre = Rotation.from_rotvec([0.4, -0.7, 1.1]).as_matrix(), np.array([1.0, -2.0, 0.5])
    values = [*(-R_world_file.T @ centre), *Rotation.from_matrix(R_world_file.T).as_rotvec()]
    text = declared(axes, "camera_from_world") + "name,tx,ty,tz,rx,ry,rz\nphoto.png," + ",".join(map(str, values))
    frame = read_csv(text)[0]
    forward = {"opencv": [0, 0, 1], "opengl": [0, 0, -1]}[axes]
    assert_allclose(frame.T_world_cam.t, centre)
    assert_allclose(frame.T_world_cam.R[:, 2], R_world_file @ forward)


@pytest.mark.parametrize("rows", [3, 4])
def test_a_matrix_is_read_by_row_and_column(read_csv, rows):
    columns = [f"m{row}{column}" for row in range(rows) for column in range(4)]
    values = [str(value) for value in FRAMES[0].matrix[:rows].ravel()]
    text = declared() + ",".join(["name", *columns]) + "\n" + ",".join(["photo.png", *values])
    frame = read_csv(text)[0]
    assert_allclose(frame.T_world_cam.matrix(), FRAMES[0].matrix, atol=1e-12)


def test_columns_in_any_order_with_everything_optional(read_csv, tmp_path):
    Image.fromarray(np.full((24, 32), 2500, dtype=np.uint16)).save(tmp_path / "depth.png")
    text = (
        "# recorded in the garden\n" + declared() + "\nSplit, depth, sequence, timestamp, k1,k2,p1,p2, fx,fy,cx,cy,"
        "width,height, qz,qy,qx,qw, tz,ty,tx, Name\n"
        "test,depth.png,walk,12.5, 0.1,0.2,0.3,0.4, 30,31,16,12, 32,24, 0,0,0,1, 3,2,1, photo.png\n"
    )
    frame = read_csv(text)[0]
    assert_allclose(frame.T_world_cam.t, [1, 2, 3])
    assert frame.camera == Camera(32, 24, 30.0, 31.0, 16.0, 12.0, (0.1, 0.2, 0.3, 0.4), "opencv")
    assert (frame.split, frame.sequence, frame.timestamp_s) == ("test", "walk", 12.5)
    assert_allclose(frame.read_depth_m(), 2.5)


def test_empty_cells_are_absent_values(read_csv):
    frame = read_csv(declared() + QUAT_HEADER + ",fx,fy,cx,cy,split,timestamp\nphoto.png,0,0,0,1,0,0,0,,,,,,\n")[0]
    assert (frame.camera, frame.split, frame.timestamp_s, frame.sequence) == (None, None, None, None)


def test_a_column_that_is_not_known_is_named_with_the_nearest_one(read_csv):
    scene = read_csv(declared() + QUAT_HEADER + ",timestmp\nphoto.png,0,0,0,1,0,0,0,5\n")
    assert "the column 'timestmp' is not known and was not read. Did you mean 'timestamp'?" in scene.warnings[0]


@pytest.mark.parametrize("declared_orientation", ["applied", "ignored"])
def test_a_turned_photo_without_a_size_follows_the_declaration(read_csv, tmp_path, declared_orientation):
    """Stored landscape, shown portrait (EXIF 6): the right of the stored photo is the bottom of the upright one."""
    write_photo(tmp_path / "turned.jpg", size_wh=(64, 32), exif=_orientation(6))
    text = f"# exif orientation: {declared_orientation}\n" + declared() + QUAT_HEADER + "\nturned.jpg,0,0,0,1,0,0,0\n"
    frame = read_csv(text)[0]
    assert frame.read_image().shape == (64, 32, 3)
    down = frame.T_world_cam.R[:, 1]
    # Turning clockwise brings the stored left edge on top: what was right is now below.
    assert_allclose(down, [0, 1, 0] if declared_orientation == "applied" else [1, 0, 0])


@pytest.mark.parametrize(("size", "down"), [("64,32", [1, 0, 0]), ("32,64", [0, 1, 0])])
def test_the_size_of_the_camera_tells_whether_poses_are_of_the_stored_photo(read_csv, tmp_path, size, down):
    write_photo(tmp_path / "turned.jpg", size_wh=(64, 32), exif=_orientation(6))
    text = declared() + QUAT_HEADER + f",fx,fy,cx,cy,width,height\nturned.jpg,0,0,0,1,0,0,0,50,51,20,15,{size}\n"
    frame = read_csv(text)[0]
    assert_allclose(frame.T_world_cam.R[:, 1], down)
    assert (frame.camera.width, frame.camera.height) == (32, 64)


def _orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


ROW = "photo.png,0,0,0,1,0,0,0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{QUAT_HEADER}\n{ROW}", "found none for 'camera axes'. Add '# camera axes: right down forward'"),
        (f"# camera axes: opencv\n{QUAT_HEADER}\n{ROW}", "found none for 'direction'. Add '# direction: "),
        (declared("right right forward") + f"{QUAT_HEADER}\n{ROW}", "one of each pair"),
        (declared("opencl") + f"{QUAT_HEADER}\n{ROW}", "one of opencv, opengl, ros, unity; found 'opencl'"),
        (declared(direction="to_world") + f"{QUAT_HEADER}\n{ROW}", "world_from_camera or camera_from_world', found"),
        (declared() + declared() + f"{QUAT_HEADER}\n{ROW}", "expected '# camera axes:' once, found it twice"),
        (declared(), "expected a header with the columns name, tx,ty,tz .* found nothing"),
        (declared() + QUAT_HEADER.replace(",", ";"), "expected a header with the columns name"),
        (declared() + f"{QUAT_HEADER},qw\n{ROW},1", "expected every column once, found 'qw' twice"),
        (declared() + f"{QUAT_HEADER},rx,ry,rz\n", "expected one kind of rotation, found several"),
        (declared() + f"{QUAT_HEADER}\nphoto.png,0,0,0,1,0,0", r"poses\.csv:4: expected 8 cells .* found 7"),
        (declared() + f"{QUAT_HEADER}\nphoto.png,0,y,0,1,0,0,0", r"poses\.csv:4, ty: expected a number, found 'y'"),
        (declared() + f'{QUAT_HEADER}\n"{ROW}', "expected comma-separated values, found: unexpected end"),
        (declared() + f"{QUAT_HEADER},split\n{ROW},val", "train, test or nothing as split, found 'val'"),
        (declared() + f"{QUAT_HEADER},fx\n{ROW},5", "expected fx,fy,cx,cy together, .* found only fx"),
        (declared() + f"{QUAT_HEADER},fx,fy,cx,cy\n{ROW},0,1,1,1", r"poses\.csv:4: Focal lengths are positive"),
        (declared() + f"{QUAT_HEADER}\n,0,0,0,1,0,0,0", "found '', which is empty"),
        (
            declared() + "name,tx,ty,tz,rx,ry,rz\nphoto.png,0,0,0,1e200,0,1e200",
            r"poses\.csv:4: expected a rotation of finite",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(read_csv, text, message):
    with pytest.raises(RelographError, match=message) as caught:
        read_csv(text)
    assert "\n" not in str(caught.value)


def test_a_bad_row_is_left_out_on_request(read_csv):
    text = declared() + QUAT_HEADER + "\nmissing.png,0,0,0,1,0,0,0\nphoto.png,0,0,0,1,0,0,0\n"
    with pytest.raises(DatasetError, match=r"missing\.png: expected a file, found nothing there"):
        read_csv(text)
    scene = read_csv(text, skip_bad_frames=True)
    assert [frame.name for frame in scene] == ["photo.png"]
    assert "missing.png" in scene.warnings[0]
