/** What stays when the page is loaded again: drawings, names of symbols, losses, and what the network has learned. */

import { CheckpointStore } from "onward-web/indexeddb";
import type { Lesson } from "./reader.js";

export interface Notes {
  readonly symbols: readonly string[];
  readonly lessons: readonly Lesson[];
  readonly losses: readonly number[];
}

/** Kept in this browser only. Without a database (a private window) the page works, and forgets. */
export class Memory {
  private constructor(private readonly store: CheckpointStore | null, private readonly model: string) {}

  static async open(model: string): Promise<Memory> {
    try {
      return new Memory(await CheckpointStore.open("onward-digits"), model);
    } catch (error) {
      console.warn("nothing will be kept:", error);
      return new Memory(null, model);
    }
  }

  get lasts(): boolean {
    return this.store !== null;
  }

  async keepNotes(notes: Notes): Promise<void> {
    await this.store?.put(`notes ${this.model}`, new TextEncoder().encode(JSON.stringify(notes)));
  }

  async notes(): Promise<Notes | null> {
    const bytes = await this.store?.get(`notes ${this.model}`);
    return bytes ? JSON.parse(new TextDecoder().decode(bytes)) : null;
  }

  async keepCheckpoint(checkpoint: Uint8Array): Promise<void> {
    await this.store?.put(`checkpoint ${this.model}`, checkpoint);
  }

  async checkpoint(): Promise<Uint8Array | null> {
    return (await this.store?.get(`checkpoint ${this.model}`)) ?? null;
  }

  async forget(): Promise<void> {
    await this.store?.delete(`notes ${this.model}`);
    await this.store?.delete(`checkpoint ${this.model}`);
  }
}
