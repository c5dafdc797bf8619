/**
 * Strokes as the picture that the model takes, made as the pictures that it learned from were: set upright, stretched to a
 * box of 20 by 32 pixels, drawn with as much ink as those have, and counted in squares of 4 by 4 pixels.
 */

/** In any unit, y downwards. */
export type Point = readonly [x: number, y: number];
export type Stroke = readonly Point[];

export const SIDE = 8; // squares in a row of the picture

const PIXELS = 32, SQUARE = PIXELS / SIDE;
const WIDTH = 20, HEIGHT = 32;
/** Pixels with ink, on average over all digits of the data; each class of them is within 5 % of it. */
const INK = 312;
/** The data's ones are lines, not blocks: no direction is stretched more than so many times as much as the other. */
const MOST_STRETCH = 2;
/** 45 degrees: a line that lies is not set upright. */
const MOST_SLANT = 1;
/** Points along the strokes, which stand for the lines between them. */
const POINTS = 160;

/** 64 numbers from 0 (paper) to 1 (ink), row by row; null where nothing has been drawn. */
export function pictureOf(strokes: readonly Stroke[]): Float32Array | null {
  const points = upright(evenly(strokes));
  if (points.length === 0) return null;
  let radius = 2.5;
  let distances = new Float32Array(0);
  // Ink reaches beyond the path by the radius of the pen, which depends on the length of the path in the box.
  for (let round = 0; round < 3; round++) {
    distances = distancesTo(fitted(points, Math.max(1, WIDTH - 2 * radius), Math.max(1, HEIGHT - 2 * radius)));
    radius = distances.slice().sort()[INK - 1]!;
  }
  const picture = new Float32Array(SIDE * SIDE);
  distances.forEach((distance, pixel) => {
    if (distance > radius) return;
    const row = Math.floor(pixel / PIXELS / SQUARE), column = Math.floor((pixel % PIXELS) / SQUARE);
    picture[row * SIDE + column]! += 1 / (SQUARE * SQUARE);
  });
  return picture;
}

/** A drawing as the same hand would draw it another time: turned a little, and bent by waves. */
export function redrawn(strokes: readonly Stroke[], random: () => number): Stroke[] {
  const { left, top, width, height } = boxOf(strokes.flat());
  const size = Math.max(width, height, 1e-9);
  const between = (low: number, high: number) => low + (high - low) * random();
  const turn = between(-0.14, 0.14), sine = Math.sin(turn), cosine = Math.cos(turn);
  const wave = () => {
    const amplitude = between(0, 0.035), frequency = between(3, 9), phase = between(0, 2 * Math.PI);
    return (at: number) => amplitude * Math.sin(frequency * at + phase);
  };
  const [across, down, along] = [wave(), wave(), wave()];
  return strokes.map((stroke) => stroke.map(([px, py]) => {
    const x = (px - left) / size - 0.5, y = (py - top) / size - 0.5;
    return [x * cosine - y * sine + across(y) + along(x), x * sine + y * cosine + down(x)] as const;
  }));
}

/** Points at equal distances along the strokes. */
function evenly(strokes: readonly Stroke[]): Point[] {
  const lengths = strokes.map((stroke) => stroke.reduce((sum, point, i) => sum + (i ? apart(stroke[i - 1]!, point) : 0), 0));
  const spacing = lengths.reduce((sum, length) => sum + length, 0) / POINTS;
  return strokes.flatMap((stroke, index) => {
    const count = spacing > 0 ? Math.round(lengths[index]! / spacing) : 0;
    return walked(stroke, count, lengths[index]!);
  });
}

function walked(stroke: Stroke, count: number, length: number): Point[] {
  const [first] = stroke;
  if (first === undefined) return [];
  const found: Point[] = [first];
  let passed = 0;
  for (let i = 1; i < stroke.length; i++) {
    const from = stroke[i - 1]!, to = stroke[i]!, step = apart(from, to);
    for (; found.length <= count && (found.length * length) / count <= passed + step + 1e-9 * length; ) {
      const part = step > 0 ? ((found.length * length) / count - passed) / step : 0;
      found.push([from[0] + part * (to[0] - from[0]), from[1] + part * (to[1] - from[1])]);
    }
    passed += step;
  }
  return found;
}

/** Without slant: sheared until x and y are not correlated. */
function upright(points: readonly Point[]): Point[] {
  const mean = (of: (point: Point) => number) => points.reduce((sum, point) => sum + of(point), 0) / Math.max(1, points.length);
  const cx = mean(([x]) => x), cy = mean(([, y]) => y);
  const variance = mean(([, y]) => (y - cy) ** 2);
  const slant = variance > 0 ? mean(([x, y]) => (x - cx) * (y - cy)) / variance : 0;
  const shear = Math.min(MOST_SLANT, Math.max(-MOST_SLANT, slant));
  return points.map(([x, y]) => [x - shear * (y - cy), y]);
}

/** In the middle of the picture, as large as the box allows. */
function fitted(points: readonly Point[], wide: number, high: number): Point[] {
  const { left, top, width, height } = boxOf(points);
  let sx = wide / width, sy = high / height; // Infinity for a line
  if (width === 0 && height === 0) sx = sy = 1;
  sx = Math.min(sx, sy * MOST_STRETCH);
  sy = Math.min(sy, sx * MOST_STRETCH);
  return points.map(([x, y]) => [
    PIXELS / 2 + sx * (x - left - width / 2),
    PIXELS / 2 + sy * (y - top - height / 2),
  ]);
}

/** From the middle of each pixel to the nearest point. */
function distancesTo(points: readonly Point[]): Float32Array<ArrayBuffer> {
  const xs = Float64Array.from(points, ([x]) => x), ys = Float64Array.from(points, ([, y]) => y);
  const distances = new Float32Array(PIXELS * PIXELS);
  for (let pixel = 0; pixel < distances.length; pixel++) {
    const x = (pixel % PIXELS) + 0.5, y = Math.floor(pixel / PIXELS) + 0.5;
    let nearest = Infinity;
    for (let i = 0; i < xs.length; i++) {
      const dx = xs[i]! - x, dy = ys[i]! - y, squared = dx * dx + dy * dy;
      if (squared < nearest) nearest = squared;
    }
    distances[pixel] = Math.sqrt(nearest);
  }
  return distances;
}

function boxOf(points: readonly Point[]): { left: number; top: number; width: number; height: number } {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [x, y] of points) {
    left = Math.min(left, x);
    right = Math.max(right, x);
    top = Math.min(top, y);
    bottom = Math.max(bottom, y);
  }
  return points.length ? { left, top, width: right - left, height: bottom - top } : { left: 0, top: 0, width: 0, height: 0 };
}

const apart = (a: Point, b: Point): number => Math.hypot(a[0] - b[0], a[1] - b[1]);
