import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

export default defineConfig({
  root: fileURLToPath(new URL(".", import.meta.url)),
  base: "./", // so that the built page can lie in any folder of any server
  publicDir: process.env.ONWARD_DEMO_PUBLIC ?? "public", // what export_model.py wrote
  // Half the bytes: the page uses no GPU.
  resolve: { alias: [{ find: /^onnxruntime-web(\/webgpu)?$/, replacement: "onnxruntime-web/wasm" }] },
  optimizeDeps: { exclude: ["onnxruntime-web/wasm", "onward-web"] }, // they look for their own files beside themselves
  build: { target: "es2022", emptyOutDir: true, assetsInlineLimit: 0 },
  worker: { format: "es" },
});
