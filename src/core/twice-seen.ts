// Suspicions that count only when two looks in a row have them. One look is not enough: what it shows may have changed since it was
// read. And the second must have been asked for after the first was looked at: after a blocked loop many old answers come at once.

export class TwiceSeen {
  #noticed = new Map<string, number>();

  /** What the latest look has shown and the next one may confirm. */
  get pending(): number {
    return this.#noticed.size;
  }

  /**
   * Of what this look shows, that which is confirmed; the rest is kept until the next look. `askedAtMono`: when the look was asked for;
   * `nowMono`: now. `mayConfirm` false: something is under way that may explain it all.
   */
  look(names: readonly string[], askedAtMono: number, nowMono: number, mayConfirm: boolean): ReadonlySet<string> {
    const confirmed = new Set<string>();
    const noticed = new Map<string, number>();
    for (const name of names) {
      const atMono = this.#noticed.get(name);
      if (mayConfirm && atMono !== undefined && askedAtMono > atMono) confirmed.add(name);
      else noticed.set(name, atMono ?? nowMono);
    }
    this.#noticed = noticed;
    return confirmed;
  }
}
