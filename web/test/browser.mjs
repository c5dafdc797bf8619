// Train in Chromium on the page of a consumer: `node browser.mjs <project> <folder with folder/ and batch> <out>`.
// Prints what happened as JSON; writes the checkpoint and the model that the page gave.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { launch } from "./chromium.mjs";
import { serve } from "./server.mjs";

const [project, work, out] = process.argv.slice(2);
const server = await serve({ "": join(project, "dist"), work });
const browser = await launch();
const complaints = [];
const found = {};
try {
  const context = await browser.newContext();
  const page = await context.newPage();
  page.on("pageerror", (error) => complaints.push(error.message));
  const load = () => page.goto(`${server.address}/`).then(() => page.waitForFunction("window.page"));
  const ask = (method, ...args) => page.evaluate(([name, given]) => window.page[name](...given), [method, args]);

  // In the page itself, then in a worker of its own: reloaded in between, continued from the browser's database.
  await load();
  found.workersBefore = page.workers().length;
  await ask("open", "/work", {});
  found.first = await ask("steps", 5);
  found.here = await ask("responsive", 2, 600);
  await load();
  await ask("open", "/work", { worker: true });
  found.workers = page.workers().length;
  found.again = await ask("steps", 5);
  found.kept = await ask("keep", "mine");
  await load();
  found.workersAfterReload = page.workers().length;
  await ask("open", "/work", { worker: true });
  found.none = await ask("resume", "yours");
  found.resumed = await ask("resume", "mine");
  found.rest = await ask("steps", 5);
  writeFileSync(`${out}.safetensors`, Uint8Array.from(await ask("checkpoint")));
  writeFileSync(`${out}.onnx`, Uint8Array.from(await ask("model")));
  found.forgotten = await ask("forget", "mine");

  found.responsive = await ask("responsive", 2, 600);
  found.stopped = await ask("stopped", 3);
  found.refused = await ask("errorOf", { input: Array(64).fill(0), labels: [7] });
  found.unknown = await ask("errorOf", { wrong: [0] });
  found.function = await ask("failure", "function");
  const before = page.workers().length;
  found.missing = await ask("failure", "missing");
  await page.waitForTimeout(200);
  found.leaked = page.workers().length - before;
  await ask("dispose");
  await page.waitForTimeout(200);
  found.workersAfterDispose = page.workers().length;
  found.disposed = await ask("failure", "disposed");
} finally {
  await browser.close();
  server.close();
}
console.log(JSON.stringify({ ...found, complaints }));
