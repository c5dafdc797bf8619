/** Learning rates as functions of the updates done so far: the formulas of `onward.optim.schedules`, number for number. */

import type { Schedule } from "./manifest.js";
import { OnwardError } from "./types.js";

/** A schedule: the rate of the next update, after `step` updates. */
export type Rate = (step: number) => number;

type Options = Record<string, any>;

interface Kind {
  /** The options without which there is no rate. */
  readonly needs: readonly string[];
  rate(options: Options): Rate;
}

const warmup = (step: number, count: number): number => (step < count ? step / Math.max(1, count) : 1);

/** A rate that rises linearly first; then the other one counts from the end of that. */
function after({ learning_rate, warmup_step_count: count = 0 }: Options, later: Rate): Rate {
  return (step) => (step < count ? learning_rate * warmup(step, count) : later(step - count));
}

const cosine = (part: number): number => (1 + Math.cos(part)) / 2;

const KINDS: Readonly<Record<string, Kind>> = {
  Constant: {
    needs: ["learning_rate"],
    rate: ({ learning_rate, warmup_step_count = 0 }) => (step) => learning_rate * warmup(step, warmup_step_count),
  },
  Linear: {
    needs: ["learning_rate", "warmup_step_count", "total_step_count"],
    rate: ({ learning_rate, warmup_step_count: rising, total_step_count: total }) => (step) =>
      learning_rate * (step < rising ? warmup(step, rising) : Math.max(0, (total - step) / Math.max(1, total - rising))),
  },
  LinearFactor: {
    needs: ["learning_rate"],
    rate: ({ learning_rate, total_step_count = 5, start_factor = 1 / 3, end_factor = 1 }) => (step) =>
      learning_rate * (start_factor + (end_factor - start_factor) * (Math.min(step, total_step_count) / total_step_count)),
  },
  Cosine: {
    needs: ["learning_rate", "total_step_count"],
    rate: (options) => {
      const { learning_rate, total_step_count: total, warmup_step_count = 0, minimum = 0, cycles = 0.5 } = options;
      const span = Math.max(1, total - warmup_step_count);
      return after(options, (step) => minimum + (learning_rate - minimum) * cosine(2 * Math.PI * cycles * (step / span)));
    },
  },
  CosineRestarts: {
    needs: ["learning_rate", "first_cycle"],
    rate: (options) => {
      const { learning_rate, first_cycle, growth = 1, minimum = 0 } = options;
      return after(options, (step) => {
        let position = step, length = first_cycle;
        if (growth === 1) position %= length;
        while (position >= length) [position, length] = [position - length, length * growth];
        return minimum + (learning_rate - minimum) * cosine((Math.PI * position) / length);
      });
    },
  },
  Polynomial: {
    needs: ["learning_rate", "total_step_count"],
    rate: (options) => {
      const { learning_rate, total_step_count: total, power = 1, warmup_step_count = 0, minimum = 0 } = options;
      const span = total - warmup_step_count || 1;
      return after(options, (step) => minimum + (learning_rate - minimum) * (1 - Math.min(1, step / span)) ** power);
    },
  },
  Step: {
    needs: ["learning_rate", "step_size"],
    rate: ({ learning_rate, step_size, gamma = 0.1 }) => (step) => learning_rate * gamma ** Math.floor(step / step_size),
  },
  MultiStep: {
    needs: ["learning_rate", "milestones"],
    rate: ({ learning_rate, milestones, gamma = 0.1 }) => (step) =>
      learning_rate * gamma ** (milestones as number[]).filter((milestone) => milestone <= step).length,
  },
  Exponential: {
    needs: ["learning_rate", "gamma"],
    rate: ({ learning_rate, gamma }) => (step) => learning_rate * gamma ** step,
  },
  OneCycle: { needs: ["learning_rate", "total_step_count"], rate: oneCycle },
  Warmup: {
    needs: ["schedule", "step_count"],
    rate: ({ schedule, step_count }) => {
      const inner = rateOf(schedule);
      return (step) => (step < step_count ? inner(0) * warmup(step, step_count) : inner(step - step_count));
    },
  },
  // As in Python's onward.edge.Training: it waits for a metric that nobody tells it here.
  ReduceOnPlateau: { needs: ["learning_rate"], rate: ({ learning_rate }) => () => learning_rate },
};

function oneCycle(options: Options): Rate {
  const { learning_rate: top, total_step_count: total, pct_start = 0.3, anneal = "cos" } = options;
  const start = top / (options.div_factor ?? 25);
  const turns: [number, number][] = [[0, start], [pct_start * total - 1, top]];
  if (options.three_phase) turns.push([2 * pct_start * total - 2, start]);
  turns.push([total - 1, start / (options.final_div_factor ?? 1e4)]);
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
  const kind = Object.hasOwn(KINDS, schedule?.name) ? KINDS[schedule.name]! : undefined;
  if (kind === undefined) {
    throw new OnwardError(`there is no schedule ${schedule?.name}; there are ${Object.keys(KINDS).join(", ")}`);
  }
  const missing = kind.needs.filter((option) => schedule[option] === undefined);
  if (missing.length > 0) throw new OnwardError(`the schedule ${schedule.name} needs ${missing.join(", ")}`);
  return kind.rate(schedule);
}
