// The circuit of a key. Failures in a row are counted in each process; the open circuit itself is a pause of the key in the store, which holds for all
// processes and survives them. After the pause requests flow again, and the next failure opens it for twice as long, up to an hour.

interface Circuit {
  failures: number;
  opened: number;
}

/** Keys of which something is kept. */
const MAX_KEYS = 100_000;
const MAX_PAUSE_MS = 3_600_000;

export class Breakers {
  readonly #circuits = new Map<number, Circuit>();

  /** One more request of the key has ended. Returns how long the key is paused from now on; null: it is not. */
  after(
    key: number,
    isDown: boolean,
    { failures, pauseMs }: { readonly failures: number; readonly pauseMs: number },
  ): number | null {
    if (!isDown) {
      this.#circuits.delete(key);
      return null;
    }
    const circuit = this.#circuits.get(key) ?? { failures: 0, opened: 0 };
    this.#circuits.set(key, circuit);
    if (this.#circuits.size > MAX_KEYS) this.#circuits.delete(this.#circuits.keys().next().value!);
    if (++circuit.failures < failures) return null;
    // What was in flight when it opened fails, too, and does not open it again for longer.
    circuit.failures = circuit.opened > 0 ? failures - 1 : 0;
    circuit.opened++;
    return Math.min(pauseMs * 2 ** Math.min(circuit.opened - 1, 20), MAX_PAUSE_MS);
  }
}
