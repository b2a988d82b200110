// The health of a key, by what came of its requests: its circuit, and whether it is given up. Failures in a row are counted in each process; an open circuit and a
// disabled key are pauses in the store, which hold for all processes and survive them.
import type { Emitter } from "../job/events.ts";
import type { JobKey } from "../job/limits.ts";
import { cutText } from "../job/text.ts";
import { type Clock, humanMs } from "../job/time.ts";
import type { Store } from "../stores/port.ts";
import type { Came } from "./outcome.ts";
import type { OneRequest } from "./request-end.ts";

export class KeyHealth {
  readonly #deps: { readonly store: Store; readonly clock: Clock; readonly events: Emitter };
  readonly #breakers = new Breakers();

  constructor(deps: { readonly store: Store; readonly clock: Clock; readonly events: Emitter }) {
    this.#deps = deps;
  }

  /** One more request of the key has ended in this way. */
  async after(one: OneRequest, key: JobKey, came: Came, then: string): Promise<void> {
    const { contract, attempt } = one;
    const { breaker, disable } = contract.request;
    const isDown = came.is === "unsent" || came.is === "cut" || (came.is === "answer" && came.status >= 500);
    const pauseMs = breaker === null ? null : this.#breakers.after(key.id, isDown, breaker);
    if (pauseMs !== null) {
      await attempt.holdOff(key.limit, `${pauseMs}ms`);
      this.#deps.events.emit("request.circuit", { kind: contract.name, key: key.key, pauseMs });
    }
    if (disable !== null && then !== "respond") await this.#disable(one, key, came, disable);
  }

  async #disable(
    one: OneRequest,
    key: JobKey,
    came: Came,
    disable: NonNullable<OneRequest["contract"]["request"]["disable"]>,
  ): Promise<void> {
    const { contract, attempt } = one;
    const failures = attempt.job.counters.errors + 1;
    const isGone = came.is === "answer" && disable.statuses.includes(came.status);
    const now = this.#deps.clock.now();
    const since = disable.afterMs === null ? now : await one.failingSince();
    const isLong = disable.afterMs !== null && now - since >= disable.afterMs && now > since;
    const isSpent = isLong || (disable.failures !== null && failures >= disable.failures);
    if (!isGone && !isSpent) return;
    const reason = isGone
      ? `the endpoint returned ${(came as { status: number }).status}`
      : isLong
        ? `request ${attempt.id} has failed for ${humanMs(now - since)}`
        : `${failures} failures in a row of request ${attempt.id}`;
    const { operate } = this.#deps.store;
    if (operate.pauseKey === undefined) return;
    await operate.pauseKey(key, { reason: cutText(`disabled: ${reason}`, 255), forMs: null });
    this.#deps.events.emit("request.disabled", { kind: contract.name, key: key.key, reason });
  }
}

interface Circuit {
  failures: number;
  opened: number;
}

/** Keys of which something is kept. */
const MAX_KEYS = 100_000;
const MAX_PAUSE_MS = 3_600_000;

/** After the pause requests flow again, and the next failure opens the circuit for twice as long, up to an hour. */
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
