// Where one looks from, and the hands that change it: mouse, fingers, keys. The world here has z up.

const CLICK_PX = 5; // a hand that holds still moves as far
const EASE_MS = 450;
const STEEPEST = 1.5; // a little less than straight down: there, left and right would lose their meaning
const FIRST_LOOK = { azimuth: -1.1, elevation: 0.6 };

export class Orbit {
  /** `changed` is called when the look is another; `clicked` and `pointed` with a place on the canvas. */
  constructor(canvas, { changed, clicked, pointed }) {
    Object.assign(this, { canvas, changed, clicked, pointed });
    this.look = { ...FIRST_LOOK, distance: 10, middle: [0, 0, 0] };
    this.isTouched = false;
    this.fingers = new Map();
    this.#listen();
  }

  /** Unit vectors of the view: ahead, to the right, and up. */
  axes() {
    const { azimuth: a, elevation: e } = this.look;
    const ahead = [-Math.cos(e) * Math.cos(a), -Math.cos(e) * Math.sin(a), -Math.sin(e)];
    const right = [-Math.sin(a), Math.cos(a), 0];
    const up = [-Math.sin(e) * Math.cos(a), -Math.sin(e) * Math.sin(a), Math.cos(e)];
    return { ahead, right, up };
  }

  turn(dx, dy) {
    this.look.azimuth -= 0.006 * dx;
    this.look.elevation = Math.max(-STEEPEST, Math.min(STEEPEST, this.look.elevation + 0.006 * dy));
    this.#moved();
  }

  move(dx, dy) {
    const { right, up } = this.axes(), step = this.look.distance / this.canvas.clientHeight;
    this.look.middle = this.look.middle.map((value, i) => value + step * (dy * up[i] - dx * right[i]));
    this.#moved();
  }

  closer(factor) {
    this.look.distance *= factor;
    this.#moved();
  }

  /** Go to another look, in a short while, or at once for who asked for less motion. */
  goTo(target) {
    const from = { ...this.look, middle: [...this.look.middle] }, start = performance.now();
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const way = this.way = {}; // whoever goes elsewhere meanwhile ends this
    const mix = (a, b, share) => a + (b - a) * share;
    const step = now => {
      if (this.way !== way) return;
      const done = isStill ? 1 : Math.min(1, Math.max(0, now - start) / EASE_MS), share = done * done * (3 - 2 * done);
      for (const name of ["azimuth", "elevation"]) {
        if (name in target) this.look[name] = mix(from[name], target[name], share);
      }
      if ("distance" in target) this.look.distance = from.distance * (target.distance / from.distance) ** share;
      if ("middle" in target) this.look.middle = from.middle.map((value, i) => mix(value, target.middle[i], share));
      this.changed();
      if (done < 1) requestAnimationFrame(step);
    };
    step(start);
  }

  fromAbove() {
    this.goTo({ elevation: STEEPEST });
  }

  whole({ middle, distance }) {
    this.goTo({ ...FIRST_LOOK, middle, distance });
  }

  #moved() {
    this.way = null;
    this.isTouched = true;
    this.changed();
  }

  #listen() {
    const { canvas, fingers } = this;
    const place = event => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", event => {
      canvas.setPointerCapture(event.pointerId);
      const [x, y] = place(event);
      fingers.set(event.pointerId, { x, y, startX: x, startY: y, button: event.button, isClick: fingers.size === 0 });
    });
    canvas.addEventListener("pointermove", event => {
      const [x, y] = place(event), before = fingers.get(event.pointerId);
      if (!before) return this.pointed(x, y);
      const dx = x - before.x, dy = y - before.y;
      if (Math.hypot(x - before.startX, y - before.startY) > CLICK_PX) before.isClick = false;
      if (fingers.size === 2) {
        const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
        const apart = Math.hypot(x - other.x, y - other.y) || 1;
        this.closer(Math.hypot(before.x - other.x, before.y - other.y) / apart);
        this.move(dx / 2, dy / 2);
      } else if (before.isClick) {
        return;
      } else if (before.button === 2 || event.shiftKey) {
        this.move(dx, dy);
      } else {
        this.turn(dx, dy);
      }
      before.x = x;
      before.y = y;
    });
    canvas.addEventListener("pointerup", event => {
      const finger = fingers.get(event.pointerId);
      fingers.delete(event.pointerId);
      if (finger?.isClick && finger.button === 0) this.clicked(finger.x, finger.y);
    });
    canvas.addEventListener("pointercancel", event => fingers.delete(event.pointerId)); // the page is scrolled instead
    canvas.addEventListener("contextmenu", event => event.preventDefault());
    canvas.addEventListener("wheel", event => {
      event.preventDefault();
      this.closer(Math.exp(0.001 * event.deltaY));
    }, { passive: false });
    canvas.addEventListener("keydown", event => {
      const act = {
        ArrowLeft: () => this.turn(-20, 0), ArrowRight: () => this.turn(20, 0),
        ArrowUp: () => this.turn(0, -20), ArrowDown: () => this.turn(0, 20),
        "+": () => this.closer(0.9), "-": () => this.closer(1 / 0.9),
      }[event.key];
      if (act && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        act();
      }
    });
  }
}
