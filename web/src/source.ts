/** Where the files of an exported folder come from: a URL, a folder on disk, or memory. */

import { OnwardError } from "./types.js";

export type Files = Readonly<Record<string, Uint8Array | ArrayBuffer | Blob>>;

export type Source = (file: string) => Promise<Uint8Array>;

export function sourceOf(where: string | URL | Files): Source {
  if (typeof where !== "string" && !(where instanceof URL)) return (file) => fromFiles(where, file);
  if (isRemote(where)) return (file) => fetched(where, file);
  return (file) => fromDisk(where, file);
}

function isRemote(where: string | URL): boolean {
  if (typeof window !== "undefined" || typeof (globalThis as any).importScripts === "function") return true;
  return /^(https?|blob|data):/.test(String(where));
}

async function fetched(where: string | URL, file: string): Promise<Uint8Array> {
  const base = new URL(String(where).replace(/\/?$/, "/"), globalThis.location?.href);
  const response = await fetch(new URL(file, base));
  if (!response.ok) throw new OnwardError(`${file} cannot be had from ${base}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

async function fromDisk(where: string | URL, file: string): Promise<Uint8Array> {
  const [fs, path, url] = await Promise.all([import("node:fs/promises"), import("node:path"), import("node:url")]);
  const folder = where instanceof URL || where.startsWith("file:") ? url.fileURLToPath(where) : where;
  try {
    return new Uint8Array(await fs.readFile(path.join(folder, file)));
  } catch (error) {
    throw new OnwardError(`there is no ${file} in ${folder}: ${(error as Error).message}`);
  }
}

async function fromFiles(files: Files, file: string): Promise<Uint8Array> {
  const found = files[file];
  if (found === undefined) throw new OnwardError(`there is no ${file} among the files: ${Object.keys(files).join(", ")}`);
  if (found instanceof Uint8Array) return found;
  return new Uint8Array(found instanceof ArrayBuffer ? found : await found.arrayBuffer());
}
