// The state of a worker's loop, as two small tables: whether a turn is due, under way or has to wait, and whether its
// turns claim. Pure: loop.ts acts on the changes, and a test walks every pair of state and event.
import type { CallOff, Clock } from "../job/time.ts";

/**
 * `idle`: nothing to do until a wake-up.
 * `hinted`: idle, but full when a wake-up came; the next tick handles it.
 * `scheduled`: a turn runs at the end of this event-loop tick.
 * `turning`: a turn is under way.
 * `turningHinted`: a turn is under way, and a wake-up came while the worker was full.
 * `turningAgain`: a turn is under way, and another has to follow.
 * `backingOff`: the store failed, and the next try is scheduled.
 * `closed`: final.
 */
export type LoopState =
  | "idle"
  | "hinted"
  | "scheduled"
  | "turning"
  | "turningHinted"
  | "turningAgain"
  | "backingOff"
  | "closed";

/**
 * `wake`: there is something to settle or to claim.
 * `hint`: another process may have made work ready, and there is no room.
 * `tick`: ten times a second while anything is held.
 * `due`: the end of the event-loop tick.
 * `ended`: the turn has ended.
 * `failed`: the store failed.
 * `retry`: the next try is due.
 * `close`: the worker ends.
 */
export type LoopEvent = "wake" | "hint" | "tick" | "due" | "ended" | "failed" | "retry" | "close";

type Row = Readonly<Partial<Record<LoopEvent, LoopState>>>;

/** Events that are not listed change nothing. */
const NEXT: Readonly<Record<LoopState, Row>> = {
  idle: { wake: "scheduled", hint: "hinted", close: "closed" },
  hinted: { wake: "scheduled", tick: "scheduled", close: "closed" },
  scheduled: { due: "turning", close: "closed" },
  turning: { wake: "turningAgain", hint: "turningHinted", ended: "idle", failed: "backingOff", close: "closed" },
  turningHinted: { wake: "turningAgain", tick: "turningAgain", ended: "hinted", failed: "backingOff", close: "closed" },
  turningAgain: { ended: "scheduled", failed: "backingOff", close: "closed" },
  backingOff: { retry: "scheduled", close: "closed" },
  closed: {},
};

export function afterEvent(state: LoopState, event: LoopEvent): LoopState {
  return NEXT[state][event] ?? state;
}

/** A response from the store is pending: what the store says is held may differ from what is known here. */
export function isTurning(state: LoopState): boolean {
  return state === "turning" || state === "turningHinted" || state === "turningAgain";
}

/**
 * Whether the worker's turns claim. `off`: not started, draining or closed. `withheld`: silent for longer than the
 * lease allows, so it would have to release a new claim at once; a heartbeat ends that.
 */
export type ClaimState = "off" | "on" | "withheld";

export type ClaimEvent = "start" | "trusted" | "untrusted" | "stop";

const NEXT_CLAIM: Readonly<Record<ClaimState, Readonly<Partial<Record<ClaimEvent, ClaimState>>>>> = {
  off: { start: "on" },
  on: { untrusted: "withheld", stop: "off" },
  withheld: { trusted: "on", stop: "off" },
};

export function afterClaimEvent(state: ClaimState, event: ClaimEvent): ClaimState {
  return NEXT_CLAIM[state][event] ?? state;
}

// How often a worker polls that no wake-up reaches: seldom while wake-ups are proved to arrive, and another process polls for all.

/** How often an idle worker polls that need not. */
const SELDOM_MS = 10_000;
/** Without a proof for this long, wake-ups count as lost: the elected process sends one every 16 s (recovery/elected-poll.ts). */
const PROVED_MS = 40_000;
/** How often it reads the schedules then, for those that changed without a wake-up. From the read before it knows what is due. */
const SCHEDULES_MS = 30_000;
/** Both, where no wake-up is lost as long as its way is proved. */
const SURE_MS = 30_000;

export class PollPace {
  readonly #clock: Clock;
  readonly #oftenMs: number;
  readonly #changed: (proved: boolean) => void;
  readonly #isSure: boolean;
  /** This process polls for all. */
  isElected = false;
  #provedMono: number;
  #isProved = false;
  #warned = false;

  /** `changed` is called when wake-ups are not proved any more, and when they are again. `isSure`: `Store.wakesSurely`. */
  constructor(clock: Clock, oftenMs: number, changed: (proved: boolean) => void, isSure = false) {
    this.#clock = clock;
    this.#isSure = isSure;
    this.#oftenMs = oftenMs;
    this.#changed = changed;
    this.#provedMono = clock.mono();
  }

  /** A proof has arrived. */
  proved(): void {
    this.#provedMono = this.#clock.mono();
    this.#isProved = true;
    if (this.#warned) this.#changed(true);
    this.#warned = false;
  }

  get everyMs(): number {
    this.#check();
    return this.#isProved ? Math.max(this.#oftenMs, this.#isSure ? SURE_MS : SELDOM_MS) : this.#oftenMs;
  }

  /** How often schedules are read: the elected process reads them for all. */
  get schedulesMs(): number {
    if (this.isElected && !this.#isSure) return this.#oftenMs;
    const { everyMs } = this;
    return this.#isProved ? Math.max(everyMs, SCHEDULES_MS) : everyMs;
  }

  /** For how many ms `everyMs` holds if nothing arrives. */
  get validMs(): number {
    return this.#isProved
      ? Math.max(0, this.#provedMono + this.#provedMs - this.#clock.mono())
      : Number.POSITIVE_INFINITY;
  }

  get #provedMs(): number {
    return this.#isSure ? SURE_MS : PROVED_MS;
  }

  #check(): void {
    if (this.#clock.mono() - this.#provedMono < this.#provedMs) return;
    this.#isProved = false;
    if (this.#warned) return;
    this.#warned = true;
    this.#changed(false);
  }
}

// When a worker tries its store again after a failure: later each time, up to five seconds, and sooner on a signal that
// the store is back.

const MIN_MS = 50;
const MAX_MS = 5_000;
/** A signal moves the next try forward to this long after the failure, so that many signals do not cause a storm. */
const SIGNALLED_MS = 500;

export class StoreBackoff {
  readonly #clock: Clock;
  readonly #again: () => void;
  #failures = 0;
  #wait: { readonly sinceMono: number; readonly atMono: number; readonly callOff: CallOff } | null = null;

  /** `again` is called when the next try is due. */
  constructor(clock: Clock, again: () => void) {
    this.#clock = clock;
    this.#again = again;
  }

  /** Returns the delay until the next try, in ms. */
  failed(): number {
    const inMs = Math.min(MAX_MS, MIN_MS * 2 ** Math.min(this.#failures++, 10));
    const sinceMono = this.#clock.mono();
    this.#waitUntil(sinceMono, sinceMono + inMs);
    return inMs;
  }

  succeeded(): void {
    this.#failures = 0;
  }

  /** The store may be back. */
  signalled(): void {
    if (!this.#wait) return;
    const { sinceMono, atMono } = this.#wait;
    if (sinceMono + SIGNALLED_MS < atMono) this.#waitUntil(sinceMono, sinceMono + SIGNALLED_MS);
  }

  close(): void {
    this.#wait?.callOff();
    this.#wait = null;
  }

  #waitUntil(sinceMono: number, atMono: number): void {
    this.#wait?.callOff();
    const callOff = this.#clock.after(Math.max(0, atMono - this.#clock.mono()), () => {
      this.#wait = null;
      this.#again();
    });
    this.#wait = { sinceMono, atMono, callOff };
  }
}
