// A visitor of the page: draws, keeps, trains and reads what is shown, with a pointer, with fingers or with keys.
import { fine } from "./drawings.mjs";

export class Visitor {
  constructor(page) {
    this.page = page;
  }

  static async arrive(context, address) {
    const page = await context.newPage();
    const visitor = new Visitor(page);
    visitor.errors = [];
    visitor.elsewhere = [];
    page.on("pageerror", (error) => visitor.errors.push(String(error)));
    page.on("console", (message) => message.type() === "error" && visitor.errors.push(message.text()));
    page.on("request", (request) => {
      if (!/^(data|blob):/.test(request.url()) && !request.url().startsWith(address)) visitor.elsewhere.push(request.url());
    });
    await page.goto(address);
    await visitor.isReady();
    return visitor;
  }

  isReady() {
    return this.page.waitForSelector("body[data-ready]", { timeout: 60_000 });
  }

  async draw(strokes) {
    const { x, y, width, height } = await this.box();
    const { mouse } = this.page;
    for (const stroke of strokes) {
      const [first, ...rest] = fine(stroke).map(([px, py]) => [x + (px / 100) * width, y + (py / 100) * height]);
      await mouse.move(...first);
      await mouse.down();
      for (const point of rest) await mouse.move(...point);
      await mouse.up();
    }
    await this.rest();
  }

  /** With a finger: touches as the browser gets them from a screen. */
  async drawByTouch(strokes) {
    const { x, y, width, height } = await this.box();
    const devtools = await this.page.context().newCDPSession(this.page);
    for (const stroke of strokes) {
      const points = fine(stroke).map(([px, py]) => [{ x: x + (px / 100) * width, y: y + (py / 100) * height }]);
      await devtools.send("Input.dispatchTouchEvent", { type: "touchStart", touchPoints: points[0] });
      for (const touchPoints of points.slice(1)) await devtools.send("Input.dispatchTouchEvent", { type: "touchMove", touchPoints });
      await devtools.send("Input.dispatchTouchEvent", { type: "touchEnd", touchPoints: [] });
    }
    await this.rest();
  }

  async box() {
    const pad = this.page.locator("#pad");
    await pad.evaluate((element) => element.scrollIntoView({ block: "center", behavior: "instant" }));
    return pad.boundingBox();
  }

  /** Until what was drawn has been read. */
  rest() {
    return this.page.waitForTimeout(300);
  }

  clear() {
    return this.page.click("#clear");
  }

  glyph() {
    return this.page.textContent("#glyph");
  }

  /** What the page shows of a drawing: the program that repeats it, and the height of each bar. */
  async shown() {
    const bars = await this.page.$$eval("#bars .fill", (fills) => fills.map((fill) => Number(/scaleY\((.+)\)/.exec(fill.style.transform)[1])));
    return { glyph: await this.glyph(), bars, program: await this.page.textContent("#program") };
  }

  async nameSymbol(name) {
    await this.page.click("#new-symbol");
    await this.page.fill("#symbol", name);
    await this.page.press("#symbol", "Enter");
  }

  async keep() {
    const count = await this.page.locator(".lesson:not(.is-free)").count();
    await this.page.click("#keep");
    await this.page.waitForFunction((count) => document.querySelectorAll(".lesson:not(.is-free)").length > count, count);
  }

  async train(while_ = async () => undefined) {
    await this.page.click("#train");
    await while_();
    await this.page.waitForFunction(() => document.querySelector("#status").textContent.includes("the loss went"), null, { timeout: 120_000 });
    const said = await this.page.textContent("#status");
    const [, first, last] = /from (\S+) to (\S+)\. /.exec(said).map(Number);
    return { first, last };
  }

  async figures() {
    const [own, strangers] = await Promise.all(["#own", "#strangers"].map((id) => this.page.textContent(id)));
    const says = await this.page.$$eval(".lesson .says", (all) => all.map((each) => each.textContent));
    return { own, strangers: parseFloat(strangers), says };
  }
}
