// Opens connections a few at a time. 5,000 that are opened at once block the event loop for 2.6 to 4.8 s; 20 in each turn of the loop for 0.14 s at most. A
// request that finds a connection waits only if the loop has been kept busy for a while.
const PER_TURN = 20;
const STRETCH_MS = 5;

export class Pacer {
  #opened = 0;
  #isScheduled = false;
  /** When the first request of this turn of the event loop began. */
  #sinceMono = 0;
  readonly #waiting: (() => void)[] = [];
  readonly #soon: (task: () => void) => void;
  readonly #mono: () => number;

  /** `soon` calls in the next turn of the event loop. */
  constructor(soon: (task: () => void) => void, mono: () => number) {
    this.#soon = soon;
    this.#mono = mono;
  }

  /** Whether more wait than the next turn of the event loop lets go. */
  get isBehind(): boolean {
    return this.#waiting.length > PER_TURN;
  }

  /** A connection is opened now. */
  opened(): void {
    this.#opened++;
    this.#schedule();
  }

  /** Resolves when one more may be sent; undefined: now. */
  turn(): Promise<void> | undefined {
    this.#schedule();
    const mayNow = this.#opened < PER_TURN && this.#waiting.length === 0 && this.#mono() - this.#sinceMono < STRETCH_MS;
    return mayNow ? undefined : new Promise((resolve) => this.#waiting.push(resolve));
  }

  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    this.#sinceMono = this.#mono();
    this.#soon(() => this.#nextTurn());
  }

  /** Each of those that go on may open a connection. */
  #nextTurn(): void {
    this.#isScheduled = false;
    this.#opened = 0;
    if (this.#waiting.length === 0) return;
    this.#schedule();
    for (const go of this.#waiting.splice(0, PER_TURN)) go();
  }
}
