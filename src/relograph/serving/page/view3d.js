// The map's cameras, the references that were used, and the answer, in 3-D.

import * as THREE from "./three.module.min.js";
import { Frusta, halfSize } from "./frusta.js";
import { Orbit } from "./orbit.js";

export const GROUPS = ["map", "references", "answer"];
const COLORS = { map: "--map", references: "--reference", answer: "--answer", chosen: "--ink" };
const SIZES = { map: 1, references: 2.5, answer: 3.75 }; // of a camera of the map
const CLICK_PX = 18;
const FIELD_DEG = 50;
const MOST_LINES = 60; // of the grid, along one side

export class CameraView {
  #waiting = false;
  #origin = null;
  #sumOfUp = [0, 0, 0];
  #level = new THREE.Matrix4(); // takes the map's world, less its origin, to one with z up
  #grid = null;
  #photos = [];
  #chosen = null;

  /** `choose` is called with the camera that was clicked, or with null beside all of them. */
  constructor(canvas, context, choose) {
    this.canvas = canvas;
    THREE.ColorManagement.enabled = false; // colours go to the screen as the style sheet has them
    this.renderer = new THREE.WebGLRenderer({ canvas, context, alpha: true }); // without alpha it would paint the page's ground black
    this.renderer.outputColorSpace = THREE.LinearSRGBColorSpace;
    this.camera = new THREE.PerspectiveCamera(FIELD_DEG);
    this.camera.up.set(0, 0, 1);
    this.scene = new THREE.Scene();
    this.world = new THREE.Group();
    this.world.matrixAutoUpdate = false;
    this.scene.add(this.world);
    this.frusta = {
      map: new Frusta(this.world, { widthPx: 1.2 }),
      references: new Frusta(this.world, { widthPx: 2, fill: 0.15 }),
      answer: new Frusta(this.world, { widthPx: 2.6, fill: 0.25, isOnTop: true }),
      chosen: new Frusta(this.world, { widthPx: 3.2, isOnTop: true }),
    };
    this.orbit = new Orbit(canvas, {
      changed: () => this.draw(),
      clicked: (x, y) => choose(this.cameraAt(x, y)),
      pointed: (x, y) => canvas.classList.toggle("pointing", this.cameraAt(x, y) !== null),
    });
    canvas.addEventListener("keydown", event => {
      if (event.key !== "Home") return;
      event.preventDefault();
      this.showAll();
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.#paint());
    this.#paint();
  }

  /** Forget all cameras, for another map. */
  clear() {
    for (const frusta of Object.values(this.frusta)) frusta.clear();
    this.#hangUp([]);
    if (this.#grid) this.#grid.visible = false;
    this.#origin = this.#box = null;
    this.#sumOfUp = [0, 0, 0];
    this.#chosen = null;
    this.orbit.isTouched = false;
    this.draw();
  }

  /** More cameras of the map. Until somebody has turned the view, it shows all that are there. */
  addMapCameras(cameras) {
    this.#origin ??= [0, 1, 2].map(i => cameras[0].T_world_cam[i][3]);
    this.frusta.map.add(cameras, this.#origin);
    for (const { T_world_cam: T } of cameras) for (const i of [0, 1, 2]) this.#sumOfUp[i] -= T[i][1];
    this.#setUp();
    if (!this.orbit.isTouched) Object.assign(this.orbit.look, this.#whole());
    this.draw();
  }

  /** The cameras of an answer; `photoUrlOf` gives the address of a camera's photo, for the plane of its image. */
  showAnswer(references, answer, photoUrlOf) {
    const cameras = { references, answer: answer ? [answer] : [] };
    if (references.length) this.#origin ??= [0, 1, 2].map(i => references[0].T_world_cam[i][3]);
    for (const [group, some] of Object.entries(cameras)) {
      this.frusta[group].clear();
      this.frusta[group].add(some, this.#origin);
    }
    this.choose(null);
    this.#hangUp([...references, ...cameras.answer].map(camera => this.#hung(camera, photoUrlOf(camera))));
    if (references.length) this.orbit.goTo(this.#around([...references, ...cameras.answer]));
  }

  /** Mark one camera; with `goThere` it comes into the middle of the view. */
  choose(camera, { goThere = false } = {}) {
    this.#chosen = camera;
    this.frusta.chosen.clear();
    if (camera) this.frusta.chosen.add([camera], this.#origin);
    this.#resize();
    if (camera && goThere) this.orbit.goTo({ middle: this.#leveled(camera) });
    this.draw();
  }

  setShown(group, isShown) {
    this.frusta[group].visible = isShown;
    for (const photo of this.#photos) if (photo.group === group) photo.visible = isShown && photo.material.map !== null;
    this.draw();
  }

  showAll() {
    this.orbit.whole(this.#whole());
  }

  /** How long a side of the grid's squares is. */
  get gridStep() {
    const { extent } = this.#whole();
    let step = 1; // for rooms, a metre; for a city, the next of 10, 100, ...
    while (extent / step > MOST_LINES) step *= 10;
    while (extent / step < 2) step /= 10;
    return step;
  }

  /** Where a camera's centre is on the canvas, [x, y] in pixels; null behind the one who looks. */
  place({ T_world_cam: T }, screenOfWorld = this.#screenOfWorld()) {
    const e = screenOfWorld.elements, origin = this.#origin;
    const x = T[0][3] - origin[0], y = T[1][3] - origin[1], z = T[2][3] - origin[2];
    const w = e[3] * x + e[7] * y + e[11] * z + e[15];
    if (w <= this.camera.near) return null;
    const across = (e[0] * x + e[4] * y + e[8] * z + e[12]) / w, up = (e[1] * x + e[5] * y + e[9] * z + e[13]) / w;
    return [(1 + across) / 2 * this.canvas.clientWidth, (1 - up) / 2 * this.canvas.clientHeight];
  }

  #screenOfWorld() {
    const { projectionMatrix, matrixWorldInverse } = this.camera;
    return projectionMatrix.clone().multiply(matrixWorldInverse).multiply(this.#level);
  }

  /** The camera that is drawn there; of several the answer first, then references. */
  cameraAt(x, y) {
    let best = null, nearest = CLICK_PX;
    const screenOfWorld = this.#screenOfWorld();
    for (const group of [...GROUPS].reverse()) {
      if (!this.frusta[group].visible) continue;
      for (const camera of this.frusta[group].cameras) {
        const place = this.place(camera, screenOfWorld);
        const away = place ? Math.hypot(place[0] - x, place[1] - y) : Infinity;
        if (away < nearest) [best, nearest] = [camera, away];
      }
      if (best && group !== "map") return best;
    }
    return best;
  }

  draw() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      this.#render();
    });
  }

  #render() {
    const { canvas, camera, orbit: { look } } = this, { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    const sharp = Math.min(window.devicePixelRatio || 1, 2), size = this.renderer.getSize(new THREE.Vector2());
    if (size.x !== width || size.y !== height || this.renderer.getPixelRatio() !== sharp) {
      this.renderer.setPixelRatio(sharp);
      this.renderer.setSize(width, height, false);
    }
    for (const { uniforms } of Object.values(this.frusta)) uniforms.canvas_px.value.set(width, height);
    const { ahead } = this.orbit.axes();
    camera.aspect = width / height;
    camera.fov = FIELD_DEG / Math.min(1, camera.aspect) ** 0.7; // a phone sees nearly as much from left to right
    camera.near = look.distance / 200;
    camera.far = look.distance + 100 * this.#whole().extent;
    camera.position.set(...look.middle.map((value, i) => value - look.distance * ahead[i]));
    camera.lookAt(...look.middle);
    camera.updateProjectionMatrix();
    camera.updateMatrixWorld();
    this.renderer.render(this.scene, camera);
  }

  /** What is up in the photos is up here: people hold cameras upright, and worlds are turned in any way. */
  #setUp() {
    const up = new THREE.Vector3(...this.#sumOfUp);
    if (up.length() < 1e-9) up.set(0, 0, 1);
    up.normalize();
    const right = new THREE.Vector3(...(Math.abs(up.x) < 0.9 ? [1, 0, 0] : [0, 1, 0])).cross(up).normalize();
    const ahead = up.clone().cross(right);
    this.#level.makeBasis(right, ahead, up).transpose();
    this.world.matrix.copy(this.#level);
    this.world.matrixWorldNeedsUpdate = true;
    this.#box = null;
    this.#resize();
    this.#drawGrid();
  }

  #leveled({ T_world_cam: T }) {
    return new THREE.Vector3(...[0, 1, 2].map(i => T[i][3] - this.#origin[i])).applyMatrix4(this.#level).toArray();
  }

  #box = null;

  /** Where most cameras of the map are: the middle 96 %, so that one far away does not make all others small. */
  #whole() {
    if (this.#box) return this.#box;
    const { cameras } = this.frusta.map, { elements: e } = this.#level, origin = this.#origin;
    const range = axis => {
      const sorted = Float64Array.from(cameras, ({ T_world_cam: T }) => e[axis] * (T[0][3] - origin[0])
        + e[axis + 4] * (T[1][3] - origin[1]) + e[axis + 8] * (T[2][3] - origin[2])).sort();
      const at = share => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
      return [at(0.02), at(0.98)];
    };
    const ranges = [0, 1, 2].map(range), middle = ranges.map(([low, high]) => (low + high) / 2);
    const extent = Math.max(...ranges.map(([low, high]) => high - low)) || 1;
    // The more cameras there are, the smaller they are, or they would hide each other.
    const size = extent * Math.min(0.03, Math.max(0.003, 0.28 / Math.sqrt(cameras.length)));
    return this.#box = { ranges, middle, extent, size, distance: 1.5 * extent };
  }

  /** The look at some cameras, from not too near: what is about them tells where they are. */
  #around(cameras) {
    const centers = cameras.map(camera => this.#leveled(camera));
    const ranges = [0, 1, 2].map(i => centers.map(center => center[i])).map(at => [Math.min(...at), Math.max(...at)]);
    const extent = Math.max(20 * this.#whole().size, ...ranges.map(([low, high]) => high - low));
    return { middle: ranges.map(([low, high]) => (low + high) / 2), distance: 1.5 * extent };
  }

  #resize() {
    const { size } = this.#whole();
    for (const group of GROUPS) this.frusta[group].uniforms.size.value = SIZES[group] * size;
    this.frusta.chosen.uniforms.size.value = (SIZES[this.#chosen?.group] ?? 0) * size;
  }

  #drawGrid() {
    if (this.#grid) {
      this.scene.remove(this.#grid);
      this.#grid.geometry.dispose();
    }
    const { ranges: [[x0, x1], [y0, y1], [z0]] } = this.#whole(), step = this.gridStep, floor = z0 - 0.5 * step;
    const [left, right, near, far] = [Math.floor(x0 / step) - 1, Math.ceil(x1 / step) + 1, Math.floor(y0 / step) - 1, Math.ceil(y1 / step) + 1];
    const points = [];
    for (let x = left; x <= right; x++) points.push(x * step, near * step, floor, x * step, far * step, floor);
    for (let y = near; y <= far; y++) points.push(left * step, y * step, floor, right * step, y * step, floor);
    const geometry = new THREE.BufferGeometry().setAttribute("position", new THREE.Float32BufferAttribute(points, 3));
    this.#grid = new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ color: color("--faint") }));
    this.scene.add(this.#grid);
  }

  /** A camera's photo on the plane of its image, when it has come. */
  #hung(camera, photoUrl) {
    const size = SIZES[camera.group] * this.#whole().size, [halfWidth, halfHeight] = halfSize(camera);
    const plane = new THREE.Mesh(new THREE.PlaneGeometry(2, 2), new THREE.MeshBasicMaterial({ side: THREE.DoubleSide }));
    const T = camera.T_world_cam.map(row => [...row]);
    for (const i of [0, 1, 2]) T[i][3] -= this.#origin[i];
    // The plane has y up, a camera's image has y down.
    plane.matrix.set(...T.flat())
      .multiply(new THREE.Matrix4().makeTranslation(0, 0, size))
      .multiply(new THREE.Matrix4().makeScale(size * halfWidth, -size * halfHeight, 1));
    plane.matrixAutoUpdate = false;
    plane.group = camera.group;
    plane.visible = false;
    photoUrl?.then(url => new THREE.TextureLoader().loadAsync(url)).then(texture => {
      plane.material.map = texture;
      plane.material.needsUpdate = true;
      plane.visible = this.frusta[camera.group].visible;
      this.draw();
    }, () => {}); // a photo that does not come is not shown
    return plane;
  }

  #hangUp(photos) {
    for (const photo of this.#photos) {
      photo.material.map?.dispose();
      photo.material.dispose();
      photo.geometry.dispose();
    }
    this.world.remove(...this.#photos);
    if (photos.length) this.world.add(...photos);
    this.#photos = photos;
  }

  #paint() {
    for (const [name, frusta] of Object.entries(this.frusta)) frusta.uniforms.color.value.set(color(COLORS[name]));
    this.#grid?.material.color.set(color("--faint"));
    this.draw();
  }
}

const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
