/** Learning rates as functions of the updates done so far: the formulas of `onward.optim.schedules`, number for number. */

import type { Schedule } from "./manifest.js";
import { OnwardError } from "./types.js";

/** A schedule: the rate of the next update, after `step` updates. */
export type Rate = (step: number) => number;

type Options = Record<string, any>;

const warmup = (step: number, count: number): number => (step < count ? step / Math.max(1, count) : 1);

const after = (o: Options, later: Rate): Rate => (step) =>
  step < (o.warmup_step_count ?? 0) ? o.learning_rate * warmup(step, o.warmup_step_count) : later(step - (o.warmup_step_count ?? 0));

const SCHEDULES: Record<string, (o: Options) => Rate> = {
  Constant: (o) => (step) => o.learning_rate * warmup(step, o.warmup_step_count ?? 0),
  Linear: (o) =>
    after(o, (step) => {
      const span = o.total_step_count - o.warmup_step_count;
      return o.learning_rate * Math.max(0, (span - step) / Math.max(1, span));
    }),
  LinearFactor: ({ learning_rate, total_step_count = 5, start_factor = 1 / 3, end_factor = 1 }) => (step) =>
    learning_rate * (start_factor + (end_factor - start_factor) * (Math.min(step, total_step_count) / total_step_count)),
  Cosine: (o) => {
    const { minimum = 0, cycles = 0.5 } = o;
    return after(o, (step) => {
      const done = step / Math.max(1, o.total_step_count - (o.warmup_step_count ?? 0));
      return minimum + (o.learning_rate - minimum) * ((1 + Math.cos(2 * Math.PI * cycles * done)) / 2);
    });
  },
  CosineRestarts: (o) => {
    const { minimum = 0, growth = 1 } = o;
    return after(o, (step) => {
      let position = step, length = o.first_cycle;
      if (growth === 1) position %= length;
      while (position >= length) [position, length] = [position - length, length * growth];
      return minimum + (o.learning_rate - minimum) * ((1 + Math.cos((Math.PI * position) / length)) / 2);
    });
  },
  Polynomial: (o) => {
    const { minimum = 0, power = 1 } = o;
    return after(o, (step) => {
      const done = step / (o.total_step_count - (o.warmup_step_count ?? 0) || 1);
      return minimum + (o.learning_rate - minimum) * (1 - Math.min(1, done)) ** power;
    });
  },
  Step: ({ learning_rate, step_size, gamma = 0.1 }) => (step) => learning_rate * gamma ** Math.floor(step / step_size),
  MultiStep: ({ learning_rate, milestones, gamma = 0.1 }) => (step) =>
    learning_rate * gamma ** (milestones as number[]).filter((milestone) => milestone <= step).length,
  Exponential: ({ learning_rate, gamma }) => (step) => learning_rate * gamma ** step,
  OneCycle: oneCycle,
  Warmup: ({ schedule, step_count }) => {
    const inner = rateOf(schedule);
    return (step) => (step < step_count ? inner(0) * warmup(step, step_count) : inner(step - step_count));
  },
};

function oneCycle(o: Options): Rate {
  const { learning_rate: top, total_step_count: total, pct_start = 0.3, anneal = "cos" } = o;
  const start = top / (o.div_factor ?? 25);
  const turns: [number, number][] = [[0, start], [pct_start * total - 1, top]];
  if (o.three_phase) turns.push([2 * pct_start * total - 2, start]);
  turns.push([total - 1, start / (o.final_div_factor ?? 1e4)]);
  return (step) => {
    let phase = 1;
    while (phase < turns.length - 1 && step > turns[phase]![0]) phase++;
    const [begin, low] = turns[phase - 1]!, [end, high] = turns[phase]!;
    const done = end > begin ? Math.min(1, (step - begin) / (end - begin)) : 1;
    return anneal === "linear" ? low + (high - low) * done : high + ((low - high) * (1 + Math.cos(Math.PI * done))) / 2;
  };
}

/** The schedule of a description, such as the one in a manifest. */
export function rateOf(schedule: Schedule | Rate): Rate {
  if (typeof schedule === "function") return schedule;
  const make = SCHEDULES[schedule.name];
  if (make === undefined) {
    throw new OnwardError(`there is no schedule ${schedule.name}; there are ${Object.keys(SCHEDULES).join(", ")}`);
  }
  return make(schedule);
}
