// Drawings for the tests: strokes on a square of 100 by 100.

const arc = (cx, cy, rx, ry, from, to, count = 20) =>
  Array.from({ length: count + 1 }, (_, i) => {
    const angle = ((from + ((to - from) * i) / count) * Math.PI) / 180;
    return [cx + rx * Math.cos(angle), cy + ry * Math.sin(angle)];
  });

export const DRAWINGS = {
  0: [arc(50, 50, 22, 34, -90, 270)],
  1: [[[36, 32], [52, 15], [52, 85]]],
  2: [[...arc(50, 34, 22, 18, -170, 40), [26, 85], [76, 85]]],
  3: [[...arc(48, 32, 20, 17, -150, 90), ...arc(48, 67, 22, 18, -90, 150)]],
  4: [[[58, 12], [24, 62], [78, 62]], [[62, 38], [58, 88]]],
  5: [[[70, 15], [36, 15], [32, 46], ...arc(48, 64, 22, 21, -120, 150)]],
  6: [[[62, 12], [40, 40], ...arc(50, 66, 20, 20, -160, 200)]],
  7: [[[26, 16], [74, 16], [44, 86]], [[36, 50], [68, 50]]],
  8: [[...arc(50, 32, 16, 17, 90, -270), ...arc(50, 67, 20, 18, -90, 270)]],
  9: [[...arc(48, 34, 18, 19, 0, -360), [66, 34], [62, 86]]],
  star: [[0, 2, 4, 1, 3, 0].map((k) => [50 + 38 * Math.sin((k * 2 * Math.PI) / 5), 52 - 38 * Math.cos((k * 2 * Math.PI) / 5)])],
};

/** A drawing as a hand would repeat it: turned, moved and uneven, the same for the same number. */
export function again(strokes, number) {
  const turn = 0.1 * Math.sin(number * 2.1), scale = 0.85 + 0.1 * Math.sin(number * 1.3);
  return strokes.map((stroke) => stroke.map(([x, y], i) => {
    const dx = (x - 50) * scale, dy = (y - 50) * scale;
    return [
      50 + 3 * Math.sin(number) + dx * Math.cos(turn) - dy * Math.sin(turn) + 1.5 * Math.sin(number * 7 + i * 1.9),
      50 + 2 * Math.cos(number) + dx * Math.sin(turn) + dy * Math.cos(turn) + 1.5 * Math.cos(number * 5 + i * 2.3),
    ];
  }));
}

/** Lines with points between their ends, as a pointer that moves gives them. */
export const fine = (stroke, step = 8) =>
  stroke.flatMap((point, i) => {
    const from = stroke[i - 1];
    if (from === undefined) return [point];
    const count = Math.max(1, Math.round(Math.hypot(point[0] - from[0], point[1] - from[1]) / step));
    return Array.from({ length: count }, (_, k) => [
      from[0] + ((point[0] - from[0]) * (k + 1)) / count,
      from[1] + ((point[1] - from[1]) * (k + 1)) / count,
    ]);
  });
