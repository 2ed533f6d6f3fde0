// Many cameras in one drawing call: the outline of a camera, and where each of them is.

import * as THREE from "./three.module.min.js";

// A camera in its own frame (OpenCV's axes): its centre, the corners of its image, and a mark above the image. x and y
// are in halves of the image, as each camera has its own.
const POINTS = [[0, 0, 0], [-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1], [0, -1.6, 1]];
const EDGES = [[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1], [1, 5], [5, 2]];
const SIDES = [[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 1]];
const USUAL_HALF = [0.6, 0.45]; // an image of 4:3 under 62 degrees, where the focal length is not known
const NUMBERS = 14; // of a camera: three rows of T_world_cam, and the halves of its image at a distance of one

const IN_WORLD = `
  attribute vec4 row_x, row_y, row_z;
  attribute vec2 half_size;
  uniform float size;
  vec4 on_screen(vec3 corner) {
    vec4 p = vec4(size * vec3(corner.xy * half_size, corner.z), 1.0);
    return projectionMatrix * modelViewMatrix * vec4(dot(row_x, p), dot(row_y, p), dot(row_z, p), 1.0);
  }`;
const FILL = "uniform vec3 color; uniform float opacity; void main() { gl_FragColor = vec4(color, opacity); }";

/** Lines of any width are ribbons that face the one who looks; WebGL's own are one pixel wide. */
const RIBBON = `${IN_WORLD}
  attribute vec3 other;
  attribute float side;
  uniform vec2 canvas_px;
  uniform float width_px;
  void main() {
    vec4 a = on_screen(position), b = on_screen(other);
    if (min(a.w, b.w) < 1e-6) { gl_Position = vec4(0.0, 0.0, 2.0, 1.0); return; } // behind the one who looks
    vec2 along = (b.xy / b.w - a.xy / a.w) * canvas_px;
    vec2 across = length(along) > 0.0 ? normalize(vec2(-along.y, along.x)) : vec2(0.0);
    a.xy += side * width_px * across / canvas_px * a.w;
    gl_Position = a;
  }`;

export class Frusta {
  #length = 0;

  /** Cameras of one colour, `size` deep, drawn by lines; with `fill` their sides are tinted, and `isOnTop` of all. */
  constructor(scene, { widthPx, fill = 0, isOnTop = false }) {
    this.cameras = [];
    this.numbers = new THREE.InstancedInterleavedBuffer(new Float32Array(NUMBERS * 16), NUMBERS);
    this.uniforms = { color: { value: new THREE.Color() }, size: { value: 1 }, canvas_px: { value: new THREE.Vector2() } };
    const material = (vertexShader, opacity) => new THREE.ShaderMaterial({
      vertexShader, fragmentShader: FILL, side: THREE.DoubleSide, transparent: opacity < 1, depthWrite: opacity === 1,
      depthTest: !isOnTop, uniforms: { ...this.uniforms, opacity: { value: opacity }, width_px: { value: widthPx } },
    });
    this.meshes = [new THREE.Mesh(ribbons(), material(RIBBON, 1))];
    if (fill) {
      const shader = `${IN_WORLD} void main() { gl_Position = on_screen(position); }`;
      this.meshes.push(new THREE.Mesh(sides(), material(shader, fill)));
    }
    for (const mesh of this.meshes) {
      mesh.frustumCulled = false; // where the instances are, only the shader knows
      mesh.renderOrder = isOnTop ? 1 : 0;
      scene.add(mesh);
    }
    this.#attach();
  }

  set visible(isVisible) { for (const mesh of this.meshes) mesh.visible = isVisible; }
  get visible() { return this.meshes[0].visible; }

  clear() {
    this.cameras = [];
    this.#length = 0;
    this.#counted();
  }

  /** More cameras; `origin` is subtracted in double precision: a city's coordinates are too long for a GPU's numbers. */
  add(cameras, origin) {
    const needed = this.#length + cameras.length;
    if (needed > this.numbers.count) {
      const larger = new Float32Array(NUMBERS * 2 ** Math.ceil(Math.log2(needed)));
      larger.set(this.numbers.array);
      this.numbers = new THREE.InstancedInterleavedBuffer(larger, NUMBERS);
      this.#attach();
    }
    for (const camera of cameras) {
      const rows = [0, 1, 2].flatMap(i => [...camera.T_world_cam[i].slice(0, 3), camera.T_world_cam[i][3] - origin[i]]);
      this.numbers.array.set([...rows, ...halfSize(camera)], NUMBERS * this.#length++);
      this.cameras.push(camera);
    }
    this.numbers.needsUpdate = true;
    this.#counted();
  }

  #attach() {
    for (const { geometry } of this.meshes) {
      geometry.dispose(); // or the renderer would go on counting by the buffer before
      ["row_x", "row_y", "row_z"].forEach((name, i) =>
        geometry.setAttribute(name, new THREE.InterleavedBufferAttribute(this.numbers, 4, 4 * i)));
      geometry.setAttribute("half_size", new THREE.InterleavedBufferAttribute(this.numbers, 2, 12));
    }
    this.#counted();
  }

  #counted() {
    for (const mesh of this.meshes) mesh.geometry.instanceCount = this.#length;
  }
}

/** Halves of the image at a distance of one, from the focal length where it is known. */
export function halfSize({ width, height, focal_px: focalPx }) {
  if (!width || !height) return USUAL_HALF;
  const longer = Math.max(width, height);
  const scale = focalPx ? 0.5 / focalPx : USUAL_HALF[0] / longer;
  return [width * scale, height * scale];
}

function ribbons() {
  const position = [], other = [], side = [], index = [];
  for (const [a, b] of EDGES) {
    const first = side.length;
    for (const [from, to, sign] of [[a, b, 1], [a, b, -1], [b, a, -1], [b, a, 1]]) {
      position.push(...POINTS[from]);
      other.push(...POINTS[to]);
      side.push(sign);
    }
    index.push(first, first + 1, first + 2, first + 2, first + 1, first + 3);
  }
  return geometryOf({ position, other, side }, index);
}

const sides = () => geometryOf({ position: POINTS.flat() }, SIDES.flat());

function geometryOf(attributes, index) {
  const geometry = new THREE.InstancedBufferGeometry();
  for (const [name, values] of Object.entries(attributes)) {
    geometry.setAttribute(name, new THREE.Float32BufferAttribute(values, name === "side" ? 1 : 3));
  }
  geometry.setIndex(index);
  return geometry;
}
