"""Rotations as matrices, unit quaternions, log quaternions, axis-angle vectors and 6D vectors.

Quaternions are `wxyz`, and those that come back have w >= 0. Every conversion is batched over leading dimensions and
differentiable, at the identity too: where a formula has 0/0 at zero angle, a series replaces it, and the branch that is
not taken is fed harmless numbers so that its gradient is not NaN.
"""

import torch
from jaxtyping import Float
from torch import Tensor

# Below this squared angle (0.01 rad) four terms of a series are exact to float64 rounding; above it the closed forms
# have lost no digits yet.
SERIES_BELOW = 1e-4


def quat_xyzw_to_wxyz(quat_xyzw: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 4"]:
    """The same quaternion with its real part first.

    Example:
        >>> quat_xyzw_to_wxyz(torch.tensor([0.1, 0.2, 0.3, 0.9]))
        tensor([0.9000, 0.1000, 0.2000, 0.3000])
    """
    return quat_xyzw.roll(1, dims=-1)


def quat_wxyz_to_xyzw(quat_wxyz: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 4"]:
    """The same quaternion with its real part last, as scipy, TUM files and ROS have it."""
    return quat_wxyz.roll(-1, dims=-1)


def quat_in_upper_hemisphere(quat_wxyz: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 4"]:
    """The one of `q` and `-q` with w > 0; at 180 degrees, where w is 0, the one whose first other part is positive.

    Parts as small as rounding count as 0: otherwise noise in the last digit of w would decide between two logarithms
    that are a whole turn apart.

    Example:
        >>> quat_in_upper_hemisphere(torch.tensor([[-1.0, 0.0, 0.0, 0.0], [1e-9, 0.0, -0.6, 0.8]]))
        tensor([[ 1.0000, -0.0000, -0.0000, -0.0000],
                [ 0.0000, -0.0000,  0.6000, -0.8000]])
    """
    size = quat_wxyz.abs()
    significant = size > 4 * torch.finfo(quat_wxyz.dtype).eps * size.amax(dim=-1, keepdim=True)
    first = significant.to(torch.uint8).argmax(dim=-1, keepdim=True)  # [*B, 1]
    upper = torch.where(quat_wxyz.gather(-1, first) < 0, -quat_wxyz, quat_wxyz)
    w = upper[..., :1]
    w = w + (w.clamp(min=0) - w).detach()  # a clamp alone would stop the gradient where rounding made w negative
    return torch.cat([w, upper[..., 1:]], dim=-1)


def quat_conjugate(quat_wxyz: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 4"]:
    """The conjugate (w, -x, -y, -z): for a unit quaternion, the inverse rotation."""
    return torch.cat([quat_wxyz[..., :1], -quat_wxyz[..., 1:]], dim=-1)


def quat_multiply(a: Float[Tensor, "*#B 4"], b: Float[Tensor, "*#B 4"]) -> Float[Tensor, "... 4"]:
    """The Hamilton product `a b`: as a rotation, first `b`, then `a`. The sign is that of the product, not w >= 0."""
    a_w, a_v = a[..., :1], a[..., 1:]
    b_w, b_v = b[..., :1], b[..., 1:]
    w = a_w * b_w - (a_v * b_v).sum(-1, keepdim=True)
    v = a_w * b_v + b_w * a_v + torch.linalg.cross(a_v, b_v)
    return torch.cat([w, v], dim=-1)


def quat_wxyz_to_matrix(quat_wxyz: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 3 3"]:
    """The rotation matrix of a quaternion of any non-zero length; `q` and `-q` give the same matrix.

    Example:
        >>> quat_wxyz_to_matrix(torch.tensor([1.0, 0.0, 0.0, 1.0]))
        tensor([[ 0., -1.,  0.],
                [ 1.,  0.,  0.],
                [ 0.,  0.,  1.]])
    """
    w, x, y, z = quat_wxyz.unbind(-1)
    s = 2 / quat_wxyz.square().sum(-1)
    rows = [
        torch.stack([1 - s * (y * y + z * z), s * (x * y - w * z), s * (x * z + w * y)], dim=-1),
        torch.stack([s * (x * y + w * z), 1 - s * (x * x + z * z), s * (y * z - w * x)], dim=-1),
        torch.stack([s * (x * z - w * y), s * (y * z + w * x), 1 - s * (x * x + y * y)], dim=-1),
    ]
    return torch.stack(rows, dim=-2)  # [*B, 3, 3]


def matrix_to_quat_wxyz(R: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 4"]:
    """The unit quaternion of a rotation matrix, w >= 0.

    The matrix holds all products of two parts of the quaternion: 4 q q^T. Each row of that is q times one of its parts;
    the row of the largest part, which is at least 1/2, is normalised, so nothing is divided by a small number.
    """
    (m00, m01, m02), (m10, m11, m12), (m20, m21, m22) = (row.unbind(-1) for row in R.unbind(-2))
    ww, xx, yy, zz = 1 + m00 + m11 + m22, 1 + m00 - m11 - m22, 1 - m00 + m11 - m22, 1 - m00 - m11 + m22
    wx, wy, wz = m21 - m12, m02 - m20, m10 - m01
    xy, xz, yz = m10 + m01, m02 + m20, m21 + m12
    products = [ww, wx, wy, wz, wx, xx, xy, xz, wy, xy, yy, yz, wz, xz, yz, zz]
    outer = torch.stack(products, dim=-1).reshape(*m00.shape, 4, 4)  # [*B, 4, 4] = 4 q q^T
    largest = outer.diagonal(dim1=-2, dim2=-1).argmax(dim=-1)  # [*B]
    row = outer.gather(-2, largest[..., None, None].expand(*largest.shape, 1, 4)).squeeze(-2)  # [*B, 4]
    return quat_in_upper_hemisphere(row / torch.linalg.vector_norm(row, dim=-1, keepdim=True))


def log_quat(quat_wxyz: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 3"]:
    r"""The logarithm of a unit quaternion q = (u, v): half the axis-angle vector, of length within [0, pi/2] radians.

    .. math:: \log q = \frac{v}{|v|} \arccos u, \qquad \log (1, 0) = 0

    `q` and `-q` are one rotation and have one logarithm, that of the one with w >= 0. atan2(|v|, u) takes the place of
    arccos(u), which knows no angle below 1e-8 and has no finite slope at u = 1.

    Example:
        >>> log_quat(torch.tensor([0.0, 1.0, 0.0, 0.0]))  # half a turn about x
        tensor([1.5708, 0.0000, 0.0000])
    """
    upper = quat_in_upper_hemisphere(quat_wxyz)
    w, v = upper[..., :1], upper[..., 1:]
    sin_sq, cos_sq = v.square().sum(-1, keepdim=True), w.square()
    small = sin_sq < SERIES_BELOW * cos_sq
    tan_sq = sin_sq / torch.where(small, cos_sq, 1.0)
    near = (1 - tan_sq * (1 / 3 - tan_sq * (1 / 5 - tan_sq / 7))) / torch.where(small, w, 1.0)
    sin = torch.where(small, 1.0, sin_sq).sqrt()
    return v * torch.where(small, near, torch.atan2(sin, w) / sin)


def exp_quat(log_q: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 4"]:
    r"""The unit quaternion wxyz, w >= 0, whose logarithm is given (half the axis-angle vector, in radians).

    .. math:: \exp \omega = (\cos |\omega|, \; \frac{\omega}{|\omega|} \sin |\omega|)

    Beyond pi/2 the formula leaves the upper hemisphere; the same rotation with w >= 0 comes back.

    Example:
        >>> exp_quat(torch.tensor([0.0, 0.0, torch.pi / 4]))  # a quarter turn about z
        tensor([0.7071, 0.0000, 0.0000, 0.7071])
    """
    angle_sq = log_q.square().sum(-1, keepdim=True)
    small = angle_sq < SERIES_BELOW
    angle = torch.where(small, 1.0, angle_sq).sqrt()
    cos_near = 1 - angle_sq * (1 / 2 - angle_sq * (1 / 24 - angle_sq / 720))
    sinc_near = 1 - angle_sq * (1 / 6 - angle_sq * (1 / 120 - angle_sq / 5040))
    w = torch.where(small, cos_near, angle.cos())
    v = log_q * torch.where(small, sinc_near, angle.sin() / angle)
    return quat_in_upper_hemisphere(torch.cat([w, v], dim=-1))


def axis_angle_to_matrix(axis_angle: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 3 3"]:
    """The rotation about the vector's direction by its length in radians."""
    return quat_wxyz_to_matrix(exp_quat(axis_angle / 2))


def matrix_to_axis_angle(R: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 3"]:
    """The rotation vector: axis times angle in radians, of length within [0, pi]."""
    return 2 * log_quat(matrix_to_quat_wxyz(R))


def rotation_6d_to_matrix(d6: Float[Tensor, "*B 6"]) -> Float[Tensor, "*B 3 3"]:
    """The rotation whose first two columns come from six free numbers (a, b) by Gram-Schmidt.

    The first column is a, normalised; the second is b without its part along a, normalised. Unlike quaternions and
    angles, this is a continuous description of all rotations, which is what a network wants to regress.

    Example:
        >>> rotation_6d_to_matrix(torch.tensor([2.0, 0.0, 0.0, 5.0, 3.0, 0.0]))
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
    """
    a, b = d6[..., :3], d6[..., 3:]
    x = a / torch.linalg.vector_norm(a, dim=-1, keepdim=True)
    b_across = b - (x * b).sum(-1, keepdim=True) * x
    y = b_across / torch.linalg.vector_norm(b_across, dim=-1, keepdim=True)
    return torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1)  # columns


def matrix_to_rotation_6d(R: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 6"]:
    """The first two columns of the rotation matrix, one after the other."""
    return torch.cat([R[..., :, 0], R[..., :, 1]], dim=-1)


def nearest_rotation(R: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 3 3"]:
    """The rotation nearest to a 3x3 matrix (least squares over its entries).

    For matrices read from text files with few digits. A mirrored matrix comes back as a rotation too; `check_rotation`
    tells them apart. Its gradient is that of the singular value decomposition, which is undefined where singular values
    are equal, as those of an exact rotation are.
    """
    U, _, Vh = torch.linalg.svd(R)
    mirrored = torch.linalg.det(U @ Vh)[..., None] < 0  # [*B, 1]
    last_row = torch.where(mirrored, -Vh[..., 2, :], Vh[..., 2, :])
    return torch.matmul(U, torch.cat([Vh[..., :2, :], last_row[..., None, :]], dim=-2))
