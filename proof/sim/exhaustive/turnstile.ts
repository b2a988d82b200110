// Store calls one at a time: each call of each process waits here until the explorer lets it through, and a process that is killed at the
// turnstile dies with the call not made, or made and not answered.
import { type Call, observed, type Verb, withVerbs } from "../../../src/stores/observed.ts";
import type { Store } from "../../../src/stores/port.ts";
import type { Witness } from "../oracle/witness.ts";
import type { SimProcess } from "../world/process.ts";

export interface Waiting {
  readonly process: SimProcess;
  readonly method: Verb;
  /** Who asks for what. */
  readonly text: string;
  /** Applies the call; the answer arrives only if `answers`. */
  pass(answers: boolean): void;
}

export class Turnstile {
  readonly #waiting: Waiting[] = [];
  readonly #heard = new Map<SimProcess, string>();
  readonly #listeners = new Map<SimProcess, () => void>();
  readonly #witness: Witness;
  /** A call that was let through and has not come to its end. */
  busy = 0;

  constructor(witness: Witness) {
    this.#witness = witness;
  }

  /** What waits now, of those who live. */
  get waiting(): readonly Waiting[] {
    return this.#waiting.filter(({ process }) => process.alive);
  }

  let(through: Waiting, answers: boolean): void {
    this.#waiting.splice(this.#waiting.indexOf(through), 1);
    through.pass(answers);
  }

  /** Every answer and wake-up that this process ever got, and when: it is deterministic, so that is its state. */
  heardBy(process: SimProcess): string {
    return this.#heard.get(process) ?? "";
  }

  #hear(process: SimProcess, what: string): void {
    this.#heard.set(process, `${this.heardBy(process)};${process.main.clock.mono()} ${what}`);
  }

  guard(store: Store, process: SimProcess): Store {
    const guarded = observed(store, { around: (verb, args, call) => this.#queue(process, verb, args, call) });
    return withVerbs(guarded, {
      close: async () => {},
      onWakeup: (listener) => {
        this.#listeners.set(process, () => listener("wake"));
        return () => void this.#listeners.delete(process);
      },
    });
  }

  #queue(process: SimProcess, method: Verb, args: readonly unknown[], call: Call): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const pass = (answers: boolean): void => {
        const asked = this.#witness.asked(process, method, args);
        this.busy++;
        call().then(
          (value) => {
            this.busy--;
            this.#witness.answered(asked, value, !answers);
            if (method === "takeBack") this.#wakeAll();
            if (!answers) return;
            this.#hear(process, `${method}${JSON.stringify(value)}`);
            resolve(value);
          },
          (thrown: unknown) => {
            this.busy--;
            this.#witness.failed(asked, thrown);
            this.#hear(process, `${method} failed`);
            reject(thrown instanceof Error ? thrown : new Error(String(thrown)));
          },
        );
      };
      this.#waiting.push({ process, method, text: `${process.name} ${method}${JSON.stringify(args)}`, pass });
    });
  }

  #wakeAll(): void {
    for (const [process, listener] of this.#listeners) {
      this.#hear(process, "wakeup");
      process.main.soon(listener);
    }
  }
}
