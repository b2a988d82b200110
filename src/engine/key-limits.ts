// Single keys while everything works: a limit of their own, a weight, a pause, and their state.
import { type AuditAction, type AuditEntry, auditEntry, type By } from "../job/audit.ts";
import { assertKey } from "../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { type JobKey, jobKey, type KeyPause, type KeyState } from "../job/limits.ts";
import type { KeyQuery, Store } from "../stores/port.ts";
import { keyLimit, type KeyLimitOptions, keyPause, type KeyPauseOptions } from "./options.ts";

/** At most this many keys are listed. */
const MAX_LISTED = 1_000;

/** `engine.limits`: reads and changes what is set for single keys. */
export class KeyLimits {
  readonly #store: Store;
  readonly #newId: () => string;

  /** Use `engine.limits`. @internal */
  constructor(store: Store, newId: () => string) {
    this.#store = store;
    this.#newId = newId;
  }

  /** Gives one key of a limit its own limit or weight, which replaces what was set before; null restores that of the limit. Running jobs continue. */
  async set(limit: string, key: string, own: KeyLimitOptions | null, by: By = {}): Promise<void> {
    const named = namedKey(limit, key);
    const entry = this.#entry("limit", named, by);
    await this.#store.operate.setLimit(named, own === null ? null : keyLimit(limit, key, own), entry);
  }

  /** No job of this key starts until `resume`, or for this long, not even one that was admitted before. Running jobs continue. A second pause replaces the first. */
  pause(limit: string, key: string, options: KeyPauseOptions): Promise<void> {
    const { actor, reason } = options;
    return this.#pause(limit, key, keyPause(limit, key, options), { reason, ...(actor !== undefined && { actor }) });
  }

  /** The key starts jobs again. */
  resume(limit: string, key: string, by: By = {}): Promise<void> {
    return this.#pause(limit, key, null, by);
  }

  #entry(action: AuditAction, { limit, key }: JobKey, by: By): AuditEntry {
    return auditEntry(this.#newId(), action, `key ${key} of limit ${limit}`, by);
  }

  async #pause(limit: string, key: string, pause: KeyPause | null, by: By): Promise<void> {
    const named = namedKey(limit, key);
    const { operate, name } = this.#store;
    if (operate.pauseKey === undefined) throw notOffered(name, "pause one key", "Pause the kind instead.");
    await operate.pauseKey(named, pause, this.#entry(pause === null ? "resume" : "pause", named, by));
  }

  /** The state of one key: what applies to it, what it holds, whether it is paused. */
  async get(limit: string, key: string): Promise<KeyState> {
    const [state] = await this.#keys({ key: namedKey(limit, key) });
    return state!;
  }

  /** The keys that have their own limit, weight or pause, of one limit or of all, by name; at most 1,000. */
  list(limit?: string): Promise<readonly KeyState[]> {
    if (limit !== undefined) assertKey(limit, "The name of the limit");
    return this.#keys({ limit: limit ?? null, most: MAX_LISTED });
  }

  async #keys(query: KeyQuery): Promise<readonly KeyState[]> {
    const { inspect, name } = this.#store;
    if (inspect.keys === undefined) throw notOffered(name, "list keys", "Read its tables.");
    return inspect.keys(query);
  }
}

function namedKey(limit: string, key: string): JobKey {
  assertKey(limit, "The name of the limit");
  assertKey(key, `The key of the limit ${limit}`);
  return jobKey(limit, key);
}

function notOffered(store: string, what: string, instead: string): OutliveError {
  return new OutliveError(ErrorCode.optionInvalid, `A ${store} store can't ${what}.`, instead, { store });
}
