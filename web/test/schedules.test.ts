import { expect, test } from "vitest";
import { rateOf } from "../src/schedules.js";
import numbers from "./numbers.json" with { type: "json" };

test.each(numbers.schedules)("$schedule.name has Python's rates", ({ schedule, rates }) => {
  const rate = rateOf(schedule);
  numbers.steps.forEach((step, index) => {
    const expected = rates[index]!;
    // Cosines and powers of two languages may differ in their last bit.
    expect(Math.abs(rate(step) - expected), `step ${step}`).toBeLessThanOrEqual(Math.abs(expected) * 4e-16 + 1e-17);
  });
});

test("functions are schedules", () => expect(rateOf((step) => 1 / (step + 1))(3)).toBe(0.25));

test("what is no schedule is refused", () => {
  expect(() => rateOf({ name: "Cosinus" })).toThrow("there is no schedule Cosinus; there are Constant, Linear,");
  expect(() => rateOf({ name: "constructor" })).toThrow("there is no schedule constructor");
  expect(() => rateOf({ name: "Cosine", learning_rate: 0.1 })).toThrow("the schedule Cosine needs total_step_count");
});
