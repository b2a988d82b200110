// Chance from a seed: the same seed and label give the same numbers forever. Every process, fault and workload has its own
// stream, so that one more draw in one place does not change all the others.
import type { Random } from "../../../src/job/time.ts";

export class SeededRandom implements Random {
  readonly #key: string;
  #a: number;
  #b: number;
  #c: number;
  #d = 1;

  constructor(key: string) {
    this.#key = key;
    this.#a = mixed(`${key}/a`);
    this.#b = mixed(`${key}/b`);
    this.#c = mixed(`${key}/c`);
    for (let i = 0; i < 12; i++) this.next();
  }

  /** A stream of its own, that depends on the label and not on how much was drawn here. */
  fork(label: string): SeededRandom {
    return new SeededRandom(`${this.#key}/${label}`);
  }

  /** sfc32. */
  next(): number {
    const sum = (this.#a + this.#b + this.#d) | 0;
    this.#d = (this.#d + 1) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = ((this.#c << 21) | (this.#c >>> 11)) + sum;
    this.#c |= 0;
    return (sum >>> 0) / 2 ** 32;
  }

  hex(count: number): string {
    let text = "";
    for (let i = 0; i < count; i++) text += this.below(256).toString(16).padStart(2, "0");
    return text;
  }

  /** A whole number from 0 to below `limit`. */
  below(limit: number): number {
    return Math.floor(this.next() * limit);
  }

  between(least: number, most: number): number {
    return least + this.next() * (most - least);
  }

  chance(share: number): boolean {
    return this.next() < share;
  }

  pick<T>(list: readonly T[]): T {
    return list[this.below(list.length)]!;
  }

  /** One of the names, as often as its weight says. */
  weighted<Name extends string>(weights: Readonly<Record<Name, number>>): Name {
    const entries = Object.entries(weights) as [Name, number][];
    let left = this.next() * entries.reduce((sum, [, weight]) => sum + weight, 0);
    for (const [name, weight] of entries) if ((left -= weight) < 0) return name;
    return entries.at(-1)![0];
  }
}

/** FNV-1a with a last stir. */
function mixed(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) | 0;
}
