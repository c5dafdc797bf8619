// Use the page as people do, in Chromium: `node page.mjs <built page> <folder for what is downloaded> [folder for pictures]`.
// Prints what was seen as JSON; tests/edge/test_demo_page.py judges it.
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { preview } from "vite";
import { DRAWINGS, again } from "./drawings.mjs";
import { Visitor } from "./visitor.mjs";

const [site, out, pictures] = process.argv.slice(2);
const root = new URL("..", import.meta.url).pathname;
const server = await preview({ root, configFile: false, logLevel: "error", build: { outDir: site }, preview: { port: 0, host: "127.0.0.1" } });
const address = server.resolvedUrls.local[0];

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const open = (options) => chromium.launchPersistentContext(mkdtempSync(join(tmpdir(), "visitor-")), { executablePath, headless: true, args: FLAGS, ...options });

const picture = (visitor, name, options = {}) =>
  pictures && visitor.page.screenshot({ path: join(pictures, `${name}.png`), ...options });

/** Somebody with a mouse teaches a star, comes back later, and takes the model home. */
async function withMouse(colorScheme) {
  const context = await open({ colorScheme, viewport: { width: 1280, height: 900 }, acceptDownloads: true });
  const visitor = await Visitor.arrive(context, address);
  await picture(visitor, `${colorScheme}-1-empty`);
  const seen = { digits: {} };
  for (let digit = 0; digit < 10; digit++) {
    await visitor.draw(DRAWINGS[digit]);
    seen.digits[digit] = await visitor.glyph();
    await visitor.clear();
  }
  await visitor.draw(DRAWINGS.star);
  seen.before = await visitor.shown();
  await picture(visitor, `${colorScheme}-2-misread`);
  await visitor.nameSymbol("★");
  await visitor.clear();
  for (let number = 1; number <= 5; number++) {
    await visitor.draw(again(DRAWINGS.star, number));
    await visitor.keep();
  }
  await visitor.draw(again(DRAWINGS.star, 6)); // one that it is not taught
  seen.figuresBefore = await visitor.figures();
  seen.untaught = await visitor.glyph();
  await picture(visitor, `${colorScheme}-3-kept`);
  seen.loss = await visitor.train(async () => {
    await visitor.page.waitForFunction(() => document.querySelector("#chart .bold").getAttribute("d").split("L").length > 90);
    await picture(visitor, `${colorScheme}-4-training`);
  });
  await visitor.rest();
  seen.figuresAfter = await visitor.figures();
  await picture(visitor, `${colorScheme}-5-trained`);
  await picture(visitor, `${colorScheme}-6-whole`, { fullPage: true });
  seen.after = await visitor.shown();

  const [download] = await Promise.all([visitor.page.waitForEvent("download"), visitor.page.click("#download")]);
  await download.saveAs(join(out, download.suggestedFilename()));
  seen.file = download.suggestedFilename();

  await visitor.page.reload();
  await visitor.isReady();
  seen.reloaded = await visitor.figures();
  seen.chartAfterReload = await visitor.page.locator("#chart .bold").getAttribute("d");
  seen.shown = {};
  for (const [name, strokes] of Object.entries(DRAWINGS)) {
    await visitor.draw(strokes);
    seen.shown[name] = await visitor.shown();
    await visitor.clear();
  }

  await visitor.page.click("#forget");
  await visitor.page.click("#forget");
  await visitor.page.waitForFunction(() => document.querySelectorAll(".lesson:not(.is-free)").length === 0);
  await visitor.draw(DRAWINGS.star);
  seen.forgotten = await visitor.glyph();
  await visitor.page.reload();
  await visitor.isReady();
  seen.afterForgetting = await visitor.figures();
  await context.close();
  return { ...seen, errors: visitor.errors, elsewhere: visitor.elsewhere };
}

/** Somebody without a mouse: everything by keys. */
async function withKeys() {
  const context = await open({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce" });
  const visitor = await Visitor.arrive(context, address);
  const { keyboard } = visitor.page;
  const isAt = (id) => visitor.page.evaluate((id) => document.activeElement?.id === id, id);
  const tabTo = async (id) => {
    for (let count = 0; count < 40 && !(await isAt(id)); count++) await keyboard.press("Tab");
    return isAt(id);
  };
  const press = async (key, count) => {
    for (let i = 0; i < count; i++) await keyboard.press(key);
  };
  const seen = { reachesPad: await tabTo("pad") };
  await press("ArrowLeft", 2);
  await keyboard.press(" ");
  await press("ArrowDown", 14);
  await visitor.rest();
  seen.line = await visitor.glyph();
  await picture(visitor, "keys-1-drawing");
  await keyboard.press(" ");
  await press("ArrowRight", 3);
  await keyboard.press("Backspace");
  await visitor.rest();
  seen.undone = await visitor.glyph();
  seen.reachesNaming = await tabTo("new-symbol");
  await keyboard.press("Enter");
  await keyboard.type("L");
  await keyboard.press("Enter");
  seen.backAtPad = await isAt("pad");
  for (let number = 0; number < 2; number++) {
    await keyboard.press(" ");
    await press("ArrowDown", 12 + number);
    await press("ArrowRight", 8);
    await keyboard.press(" ");
    await visitor.rest();
    seen.before = await visitor.glyph();
    await keyboard.press("Enter");
    await visitor.rest();
  }
  seen.announced = await visitor.page.textContent("#status");
  seen.reachesTrain = await tabTo("train");
  await keyboard.press("Enter");
  await visitor.page.waitForFunction(() => document.querySelector("#status").textContent.includes("the loss went"), null, { timeout: 120_000 });
  seen.figures = await visitor.figures();
  await context.close();
  return { ...seen, errors: visitor.errors };
}

/** Somebody with a phone, in the dark. */
async function withFingers() {
  const context = await open({ viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true, colorScheme: "dark" });
  const visitor = await Visitor.arrive(context, address);
  await picture(visitor, "phone-1-empty");
  const seen = { width: await visitor.page.evaluate(() => document.documentElement.scrollWidth) };
  const scrolled = () => visitor.page.evaluate(() => window.scrollY);
  await visitor.box();
  const before = await scrolled();
  await visitor.drawByTouch(DRAWINGS[3]);
  seen.stayed = (await scrolled()) === before;
  seen.three = await visitor.glyph();
  await picture(visitor, "phone-2-read");
  await visitor.clear();
  await visitor.nameSymbol("★");
  for (let number = 1; number <= 5; number++) {
    await visitor.drawByTouch(again(DRAWINGS.star, number));
    await visitor.keep();
  }
  await visitor.train();
  seen.figures = await visitor.figures();
  await visitor.drawByTouch(again(DRAWINGS.star, 7));
  seen.star = await visitor.glyph();
  seen.widthAfter = await visitor.page.evaluate(() => document.documentElement.scrollWidth);
  const small = await visitor.page.$$eval("button, .chips label", (all) => all
    .filter((each) => each.offsetParent !== null && Math.min(each.offsetWidth, each.offsetHeight) < 28).map((each) => each.textContent));
  await picture(visitor, "phone-3-whole", { fullPage: true });
  await context.close();
  return { ...seen, small, errors: visitor.errors };
}

try {
  const result = { mouse: await withMouse("light"), keys: await withKeys(), fingers: await withFingers() };
  if (pictures) await withMouse("dark");
  console.log(JSON.stringify(result));
} finally {
  await server.close();
}
process.exit(0);
