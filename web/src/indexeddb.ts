/** Keep checkpoints in the browser, so that a page that is loaded again continues. */

import { OnwardError } from "./types.js";

const STORE = "checkpoints";

/** A place for checkpoints, by name, in the database of this page. */
export class CheckpointStore {
  private constructor(private readonly database: IDBDatabase) {}

  static async open(name = "onward"): Promise<CheckpointStore> {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    return new CheckpointStore(await finished(request));
  }

  async put(name: string, checkpoint: Uint8Array): Promise<void> {
    await finished(this.store("readwrite").put(checkpoint, name));
  }

  /** What was put there, or null. */
  async get(name: string): Promise<Uint8Array | null> {
    return ((await finished(this.store("readonly").get(name))) as Uint8Array | undefined) ?? null;
  }

  async delete(name: string): Promise<void> {
    await finished(this.store("readwrite").delete(name));
  }

  close(): void {
    this.database.close();
  }

  private store(mode: IDBTransactionMode): IDBObjectStore {
    return this.database.transaction(STORE, mode).objectStore(STORE);
  }
}

function finished<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(new OnwardError(`the browser's database refuses: ${request.error?.message}`));
  });
}
