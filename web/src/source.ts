/** Where the files of an exported folder come from: a URL, a folder on disk, or memory. */

import { OnwardError, isNode } from "./types.js";

export type Files = Readonly<Record<string, Uint8Array | ArrayBuffer | Blob>>;

export type Source = (file: string) => Promise<Uint8Array>;

export function sourceOf(where: string | URL | Files): Source {
  if (typeof where !== "string" && !(where instanceof URL)) return (file) => fromFiles(where, file);
  if (!isNode || /^(https?|blob|data):/.test(String(where))) return (file) => fetched(where, file);
  return (file) => fromDisk(where, file);
}

async function fetched(where: string | URL, file: string): Promise<Uint8Array> {
  const base = new URL(String(where), globalThis.location?.href);
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  const address = new URL(file, base);
  address.search = base.search; // a signature, or a token
  let response: Response;
  try {
    response = await fetch(address);
  } catch (error) {
    throw new OnwardError(`${file} cannot be had from ${base.origin}${base.pathname}: ${(error as Error).message}`);
  }
  if (!response.ok) {
    throw new OnwardError(`${file} cannot be had from ${base.origin}${base.pathname}: ${response.status} ${response.statusText}`);
  }
  return new Uint8Array(await response.arrayBuffer());
}

async function fromDisk(where: string | URL, file: string): Promise<Uint8Array> {
  // Variables, so that bundlers for browsers do not look for them.
  const modules = ["node:fs/promises", "node:path", "node:url"].map((name) => import(/* @vite-ignore */ /* webpackIgnore: true */ name));
  const [fs, path, url] = await Promise.all(modules);
  const folder = where instanceof URL || where.startsWith("file:") ? url.fileURLToPath(where) : where;
  try {
    return new Uint8Array(await fs.readFile(path.join(folder, file)));
  } catch (error) {
    throw new OnwardError(`there is no ${file} in ${folder}: ${(error as Error).message}`);
  }
}

async function fromFiles(files: Files, file: string): Promise<Uint8Array> {
  const found = Object.hasOwn(files, file) ? files[file] : undefined;
  if (found === undefined) throw new OnwardError(`there is no ${file} among the files: ${Object.keys(files).join(", ")}`);
  if (found instanceof Uint8Array) return found;
  return new Uint8Array(found instanceof ArrayBuffer ? found : await found.arrayBuffer());
}

/** The file, if it is the one that a manifest describes: a cache may have kept one of an older export. */
export async function verified(source: Source, { file, sha256 }: { readonly file: string; readonly sha256: string }): Promise<Uint8Array> {
  const content = await source(file);
  const { subtle } = globalThis.crypto ?? {};
  // Pages that did not come over HTTPS, nor from this machine, have no hashes.
  if (subtle === undefined) return content;
  const digest = new Uint8Array(await subtle.digest("SHA-256", content as Uint8Array<ArrayBuffer>));
  if (Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") !== sha256) {
    throw new OnwardError(`${file} is not the file that manifest.json describes: load the page without its cache, or export the folder again`);
  }
  return content;
}
