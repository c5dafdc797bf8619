/** The order in which Python's Trainer takes the rows of an epoch: numpy's default generator, bit for bit. */

const MASK_32 = 0xffff_ffffn, MASK_64 = (1n << 64n) - 1n, MASK_128 = (1n << 128n) - 1n;

/** `numpy.random.default_rng([seed, epoch]).permutation(rows)`. */
export function permutation(seed: number | bigint, epoch: number, rows: number): Uint32Array {
  const random = new Pcg64([...words(BigInt.asUintN(64, BigInt(seed))), ...words(BigInt(epoch))]);
  const order = Uint32Array.from({ length: rows }, (_, row) => row);
  for (let last = rows - 1; last > 0; last--) {
    const other = random.upTo(last);
    [order[last], order[other]] = [order[other]!, order[last]!];
  }
  return order;
}

/** A whole number in words of 32 bits, the lowest first; 0 is one word. */
function words(value: bigint): number[] {
  const found: number[] = [];
  do {
    found.push(Number(value & MASK_32));
    value >>= 32n;
  } while (value > 0n);
  return found;
}

/** The generator called PCG XSL RR 128/64. */
class Pcg64 {
  private state = 0n;
  private readonly increment: bigint;
  private half: number | null = null;

  constructor(entropy: readonly number[]) {
    const [a, b, c, d] = seeds(entropy) as [bigint, bigint, bigint, bigint];
    this.increment = (((c << 64n) | d) << 1n | 1n) & MASK_128;
    this.advance();
    this.state = (this.state + ((a << 64n) | b)) & MASK_128;
    this.advance();
  }

  /** A whole number from 0 to `most`, each as likely as the others: what has too many is drawn again. */
  upTo(most: number): number {
    const mask = 0xffff_ffff >>> Math.clz32(most);
    for (;;) {
      const drawn = (this.word() & mask) >>> 0;
      if (drawn <= most) return drawn;
    }
  }

  private advance(): void {
    this.state = (this.state * 0x2360ed051fc65da44385df649fccf645n + this.increment) & MASK_128;
  }

  /** 32 bits: the lower half of a draw, then its upper half. */
  private word(): number {
    if (this.half !== null) {
      const kept = this.half;
      this.half = null;
      return kept;
    }
    this.advance();
    const mixed = (this.state >> 64n) ^ (this.state & MASK_64), turn = this.state >> 122n;
    const drawn = ((mixed >> turn) | (mixed << ((64n - turn) & 63n))) & MASK_64;
    this.half = Number(drawn >> 32n);
    return Number(drawn & MASK_32);
  }
}

/** Four words of 64 bits from any entropy: numpy's SeedSequence. */
function seeds(entropy: readonly number[]): bigint[] {
  const hash = hashing(0x43b0d7e5, 0x931e8875);
  const pool = [0, 1, 2, 3].map((index) => hash(entropy[index] ?? 0));
  for (let from = 0; from < pool.length; from++) {
    for (let to = 0; to < pool.length; to++) if (from !== to) pool[to] = mix(pool[to]!, hash(pool[from]!));
  }
  for (const word of entropy.slice(pool.length)) {
    for (let to = 0; to < pool.length; to++) pool[to] = mix(pool[to]!, hash(word));
  }
  const output = hashing(0x8b51f9dd, 0x58f38ded);
  const halves = Array.from({ length: 8 }, (_, index) => BigInt(output(pool[index % pool.length]!)));
  return [0, 2, 4, 6].map((index) => halves[index]! | (halves[index + 1]! << 32n));
}

/** A hash whose constant changes with each word. */
function hashing(constant: number, factor: number): (word: number) => number {
  return (word) => {
    const mixed = (word ^ constant) >>> 0;
    constant = Math.imul(constant, factor) >>> 0;
    const product = Math.imul(mixed, constant) >>> 0;
    return (product ^ (product >>> 16)) >>> 0;
  };
}

function mix(x: number, y: number): number {
  const result = (Math.imul(x, 0xca01f9dd) - Math.imul(y, 0x4973f715)) >>> 0;
  return (result ^ (result >>> 16)) >>> 0;
}
