// Train in Chromium on WebGPU, computed by SwiftShader: `node webgpu.mjs <project> <variant> <steps> <works...>`.
// A work is a folder with folder/ and batch. Prints what happened as JSON; {"adapter": null} where there is no WebGPU.
import { join, resolve } from "node:path";
import { launch } from "./chromium.mjs";
import { serve } from "./server.mjs";

const [project, variant, steps, ...works] = process.argv.slice(2);
const modules = resolve(import.meta.dirname, "../node_modules");
// The package's own choice; the older provider that the newest package still has; and that of the oldest package.
const address = (dist, module) => ({ ort: `/${dist}/${module}`, env: { wasm: { wasmPaths: `/${dist}/`, numThreads: 1 } } });
const options = {
  newest: {},
  jsep: address("newest", "ort.all.min.mjs"),
  oldest: address("oldest", "ort.webgpu.min.mjs"),
}[variant];
const server = await serve({
  "": join(project, "dist"),
  newest: join(modules, "onnxruntime-web/dist"),
  oldest: join(modules, "onnxruntime-web-oldest/dist"),
  ...Object.fromEntries(works.map((work, index) => [`work${index}`, work])),
});
const browser = await launch("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan");
const results = [];
let adapter = null;
try {
  const page = await browser.newPage();
  for (const index of works.keys()) {
    await page.goto(`${server.address}/`);
    await page.waitForFunction("window.page");
    adapter = await page.evaluate(async () => (await navigator.gpu?.requestAdapter())?.info.architecture ?? null);
    if (adapter === null) break;
    const ask = (method, ...args) => page.evaluate(([name, given]) => window.page[name](...given), [method, args]);
    try {
      await ask("open", `/work${index}`, { worker: true, ...options });
      const { losses } = await ask("steps", Number(steps));
      results.push({ losses, ignored: await ask("guard") });
    } catch (error) {
      results.push({ error: error.message });
    }
  }
} finally {
  await browser.close();
  server.close();
}
console.log(JSON.stringify({ adapter, results }));
