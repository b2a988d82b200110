// Who is woken when work becomes ready: the listeners of this process at once, the others by the store's bell.

export interface Bell {
  /** Wakes other processes. */
  ring(): void;
  /** Hears other processes; answers how to stop. */
  onRing(listener: () => void): () => void;
}

export class Ringing {
  readonly #bell: Bell | null;
  readonly #local = new Set<() => void>();

  /** `bell`: null for a store that only this process has. */
  constructor(bell: Bell | null) {
    this.#bell = bell;
  }

  ring(): void {
    this.ringHere();
    this.#bell?.ring();
  }

  /** When the others hear of it in another way. */
  ringHere(): void {
    for (const listener of this.#local) listener();
  }

  onBell(listener: () => void): () => void {
    this.#local.add(listener);
    const unhear = this.#bell?.onRing(listener);
    return () => {
      this.#local.delete(listener);
      unhear?.();
    };
  }

  /** Nobody of this process is woken any more; the bell is its owner's to close. */
  close(): void {
    this.#local.clear();
  }
}
