/** One thing after the other: sessions run one at a time, and a step needs the state of the last. */

import { pause } from "./pause.js";
import { OnwardError } from "./types.js";

export class Queue {
  private last: Promise<unknown> = Promise.resolve();
  private closed = false;

  /** Run after all that was asked for before. */
  run<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.last.then(pause).then(() => {
      if (this.closed) throw new OnwardError("this training was disposed of");
      return work();
    });
    this.last = turn.catch(() => undefined);
    return turn;
  }

  /** Run for the last time; nothing can be done afterwards, but this again, which does nothing. */
  async close(work: () => Promise<void>): Promise<void> {
    if (this.closed) return;
    await this.run(async () => {
      this.closed = true;
      await work();
    });
  }
}
