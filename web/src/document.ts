/** What is read from JSON files that others wrote, checked before it is used. */

import { OnwardError, TYPES } from "./types.js";

/** A part of a JSON file and where it is, so that what is wrong can be said. */
export class Part {
  private constructor(readonly value: unknown, private readonly where: string) {}

  static parse(bytes: Uint8Array, file: string): Part {
    try {
      return new Part(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes)), file);
    } catch (error) {
      throw new OnwardError(`${file} is damaged: ${(error as Error).message}`);
    }
  }

  damaged(why: string): OnwardError {
    return new OnwardError(`${this.where} is damaged: ${why}; write the files again`);
  }

  get(key: string): unknown {
    const { value } = this;
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw this.damaged("it is no object");
    return Object.hasOwn(value, key) ? (value as Record<string, unknown>)[key] : undefined;
  }

  has(key: string): boolean {
    return this.get(key) !== undefined && this.get(key) !== null;
  }

  part(key: string): Part {
    return new Part(this.get(key), `${this.where}.${key}`);
  }

  list(key: string): Part[] {
    const found = this.get(key);
    if (!Array.isArray(found)) throw this.damaged(`${key} is no list`);
    return found.map((item, index) => new Part(item, `${this.where}.${key}[${index}]`));
  }

  text(key: string): string {
    const found = this.get(key);
    if (typeof found !== "string") throw this.damaged(`${key} is no text`);
    return found;
  }

  texts(key: string): void {
    for (const { value } of this.list(key)) if (typeof value !== "string") throw this.damaged(`${key} has what is no text`);
  }

  number(key: string): number {
    const found = this.get(key);
    if (typeof found !== "number") throw this.damaged(`${key} is no number`);
    return found;
  }

  rate(key: string): void {
    if (!(this.number(key) >= 0)) throw this.damaged(`${key} is negative`);
  }

  whole(key: string): number {
    const found = this.get(key);
    if (!Number.isSafeInteger(found)) throw this.damaged(`${key} is no whole number that JavaScript is sure of`);
    return found as number;
  }

  sizes(key: string): void {
    const found = this.get(key);
    if (!Array.isArray(found) || !found.every(isCount)) throw this.damaged(`${key} is no list of sizes`);
  }
}

/** A file is in the folder itself: its name is no path, and no address. */
export function checkFile(file: Part): Part {
  if (!/^[\w][\w.-]*$/.test(file.text("file"))) throw file.damaged(`${file.get("file")} is no name of a file`);
  file.text("sha256");
  return file;
}

export function checkValue(value: Part): Part {
  value.text("name");
  const type = value.text("type");
  if (!Object.hasOwn(TYPES, type)) throw new OnwardError(`${value.get("name")} is ${type}, which onward-web does not support`);
  const shape = value.get("shape");
  const fits = Array.isArray(shape) && shape.every((size) => size === null || typeof size === "string" || isCount(size));
  if (shape !== null && !fits) throw value.damaged("its shape is none");
  return value;
}

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
