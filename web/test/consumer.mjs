// Make a project that uses the package as npm would give it: `node consumer.mjs <folder>`. Types are checked, a page is built.
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, symlinkSync } from "node:fs";
import { join, resolve } from "node:path";

const project = resolve(process.argv[2]);
const web = resolve(import.meta.dirname, "..");
const modules = join(project, "node_modules");
cpSync(join(web, "test/consumer"), project, { recursive: true });
mkdirSync(modules, { recursive: true });
for (const name of ["onnxruntime-web", "onnxruntime-common"]) symlinkSync(join(web, "node_modules", name), join(modules, name));

const packed = execFileSync("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", project], { cwd: web, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
const [{ filename, files }] = Object.values(JSON.parse(packed));
mkdirSync(join(modules, "onward-web"));
execFileSync("tar", ["-xzf", join(project, filename), "-C", join(modules, "onward-web"), "--strip-components", "1"]);
const run = (tool, ...args) => execFileSync(process.execPath, [join(web, "node_modules", tool), ...args], { cwd: project, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
run("typescript/bin/tsc", "-p", ".");
run("vite/bin/vite.js", "build", "--logLevel", "warn");
console.log(JSON.stringify(files.map(({ path }) => path)));
