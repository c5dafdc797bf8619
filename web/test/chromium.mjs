// Debian's Chromium, without what it would ask the network for.
import { chromium } from "playwright-core";

const QUIET = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

export const launch = (...more) =>
  chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", ...QUIET, ...(more.length > 0 ? more : ["--disable-gpu"])],
  });
