/** What a drawing may be: the ten digits, and up to three symbols of the visitor's own. */

import { found, html } from "./elements.js";

const DIGITS = 10;

export class Labels {
  private own: string[] = [];
  private readonly naming = found<HTMLFormElement>("naming");
  private readonly symbol = found<HTMLInputElement>("symbol");

  constructor(private readonly most: number, private readonly onChange: () => void, private readonly onNamed: () => void) {
    this.naming.addEventListener("submit", (event) => {
      event.preventDefault();
      this.add(this.symbol.value.trim());
    });
    this.symbol.addEventListener("keydown", ({ key }) => {
      if (key === "Escape") this.naming.hidden = true;
    });
    this.show(null);
  }

  get names(): string[] {
    return [...Array.from({ length: DIGITS }, (_, digit) => String(digit)), ...this.own];
  }

  get symbols(): readonly string[] {
    return this.own;
  }

  set symbols(symbols: readonly string[]) {
    this.own = [...symbols];
    this.show(this.chosen);
  }

  get chosen(): number | null {
    const checked = document.querySelector<HTMLInputElement>(".chips input:checked");
    return checked === null ? null : Number(checked.value);
  }

  private add(name: string): void {
    if (name === "") return;
    const known = this.names.indexOf(name);
    if (known < 0) this.own.push(name);
    this.naming.hidden = true;
    this.symbol.value = "";
    this.show(known < 0 ? this.names.length - 1 : known);
    this.onChange();
    this.onNamed();
  }

  private show(chosen: number | null): void {
    const chips = this.names.map((name, index) => {
      const input = html("input", { type: "radio", name: "label", value: index });
      input.checked = index === chosen;
      input.addEventListener("change", () => this.onChange());
      return html("label", {}, input, html("span", {}, name));
    });
    found("digits").replaceChildren(...chips.slice(0, DIGITS));
    found("symbols").replaceChildren(...chips.slice(DIGITS), ...(this.names.length < this.most ? [this.adder()] : []));
  }

  private adder(): HTMLButtonElement {
    const button = html("button", { type: "button", id: "new-symbol" }, "+ your symbol");
    button.addEventListener("click", () => {
      this.naming.hidden = false;
      this.symbol.focus();
    });
    return button;
  }
}
