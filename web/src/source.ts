/** Where the files of an exported folder come from: a URL, a folder on disk, or memory. */

import { OnwardError, isNode } from "./types.js";

export type Files = Readonly<Record<string, Uint8Array | ArrayBuffer | Blob>>;

export type Source = (file: string) => Promise<Uint8Array>;

export function sourceOf(where: string | URL | Files): Source {
  if (typeof where !== "string" && !(where instanceof URL)) return (file) => fromFiles(where, file);
  return (file) => (isRemote(where) ? fetched(where, file) : readFile(where, file));
}

/** The bytes of one file, from a URL or, in Node, a path. */
export async function contentOf(where: string | URL): Promise<Uint8Array> {
  return isRemote(where) ? download(new URL(String(where), globalThis.location?.href)) : readFile(where, "");
}

const isRemote = (where: string | URL): boolean => !isNode || /^(https?|blob|data):/.test(String(where));

async function fetched(where: string | URL, file: string): Promise<Uint8Array> {
  const base = new URL(String(where), globalThis.location?.href);
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  const address = new URL(file, base);
  address.search = base.search; // a signature, or a token
  return download(address);
}

async function download(address: URL): Promise<Uint8Array> {
  const refused = (why: string) => new OnwardError(`${address.origin}${address.pathname} cannot be had: ${why}`);
  let response: Response;
  try {
    response = await fetch(address);
  } catch (error) {
    throw refused((error as Error).message);
  }
  if (!response.ok) throw refused(`${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

async function readFile(where: string | URL, file: string): Promise<Uint8Array> {
  // Variables, so that bundlers for browsers do not look for them.
  const modules = ["node:fs/promises", "node:path", "node:url"].map((name) => import(/* @vite-ignore */ /* webpackIgnore: true */ name));
  const [fs, path, url] = await Promise.all(modules);
  const place = where instanceof URL || where.startsWith("file:") ? url.fileURLToPath(where) : where;
  try {
    return new Uint8Array(await fs.readFile(path.join(place, file)));
  } catch (error) {
    throw new OnwardError(`there is no ${file || place}${file && ` in ${place}`}: ${(error as Error).message}`);
  }
}

async function fromFiles(files: Files, file: string): Promise<Uint8Array> {
  const found = Object.hasOwn(files, file) ? files[file] : undefined;
  if (found === undefined) throw new OnwardError(`there is no ${file} among the files: ${Object.keys(files).join(", ")}`);
  if (found instanceof Uint8Array) return found;
  return new Uint8Array(found instanceof ArrayBuffer ? found : await found.arrayBuffer());
}

/** The file, if it is the one that a manifest describes. */
export async function verified(source: Source, described: { readonly file: string; readonly sha256: string }): Promise<Uint8Array> {
  const content = await source(described.file);
  await verify(content, described);
  return content;
}

/** Refuse what is not the file that a manifest describes: a cache may have kept one of an older export. */
export async function verify(content: Uint8Array, { file, sha256 }: { readonly file: string; readonly sha256: string }): Promise<void> {
  const { subtle } = globalThis.crypto ?? {};
  // Pages that did not come over HTTPS, nor from this machine, have no hashes.
  if (subtle === undefined) return;
  const digest = new Uint8Array(await subtle.digest("SHA-256", content as Uint8Array<ArrayBuffer>));
  if (Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") !== sha256) {
    throw new OnwardError(`${file} is not the file that manifest.json describes: load the page without its cache, or write the files again`);
  }
}
