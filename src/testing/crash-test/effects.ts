// What a job does outside the store, recorded as its process does it: HTTP requests are detected automatically,
// everything else is reported with `effect`. Each effect is a line in an append-only file, written before the process
// can die of what comes next.
import { subscribe } from "node:diagnostics_channel";
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { WAIT_PREFIX } from "../../job/waits.ts";
import { withVerbs } from "../../stores/observed.ts";
import type { Store, Transactions } from "../../stores/port.ts";

const VARIABLE = "OUTLIVE_CRASH_TEST_EFFECTS";

export interface Effect {
  readonly what: string;
  /** The idempotency key that it carried: the same key twice is one effect to a receiver that honours it. */
  readonly key: string | null;
}

/** For a job under `crashTest`: reports that an effect outside the store happens now. Does nothing elsewhere. */
export function effect(what: string, options: { readonly key?: string } = {}): void {
  write({ what, key: options.key ?? null });
}

export function environment(file: string): NodeJS.ProcessEnv {
  return { [VARIABLE]: file };
}

export function readEffects(file: string): Effect[] {
  if (!existsSync(file)) return [];
  return readFileSync(file, "utf8")
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as Effect);
}

/** Records every request sent with `fetch` or `node:http`. Reads too: only the user knows whether they matter. */
export function watchRequests(): void {
  subscribe("undici:request:create", (message) => {
    const { request } = message as {
      request: { method: string; origin: string; path: string; headers: readonly string[] | string };
    };
    const headers = typeof request.headers === "string" ? request.headers.split("\r\n") : request.headers;
    write({ what: `${request.method} ${request.origin}${request.path}`, key: keyOf(headers) });
  });
  subscribe("http.client.request.start", (message) => {
    const { request } = message as {
      request: {
        method: string;
        protocol: string;
        host: string;
        path: string;
        getHeader(name: string): unknown;
      };
    };
    const { method, protocol, host, path } = request;
    const key = request.getHeader("idempotency-key");
    write({ what: `${method} ${protocol}//${host}${path}`, key: typeof key === "string" ? key : null });
  });
}

/** Headers are alternating names and values, or whole lines. */
function keyOf(headers: readonly string[]): string | null {
  for (const [at, header] of headers.entries()) {
    if (header.toLowerCase() === "idempotency-key") return headers[at + 1] ?? null;
    const [, value] = /^idempotency-key:\s*(.*)$/i.exec(header) ?? [];
    if (value !== undefined) return value;
  }
  return null;
}

function write(happened: Effect): void {
  const file = process.env[VARIABLE];
  if (file !== undefined) appendFileSync(file, `${JSON.stringify(happened)}\n`);
}

// Where a job's process can die so that something happens twice: around every durable step, every wait, and the settlement.
// The points come from wrapping the store port; the engine has no hook for this.

/** A point in the job's life, in words. */
export type Reached = (point: string) => void;

/** The same store, except that it calls `reached` at every point before the process continues. */
export function tellingStore(store: Store, jobId: string, reached: Reached): Store {
  const write: Store["write"] = async (writes) => {
    const ours = writes.filter(({ lease }) => lease.jobId === jobId);
    const steps = ours.flatMap(({ write: one }) => (one.type === "step" ? [one.name] : []));
    const signals = ours.flatMap(({ write: one }) => (one.type === "signal" ? [one.step] : []));
    for (const name of steps) reached(beforeKept(name));
    for (const step of signals) reached(`at the wait ${step}, before a signal was read`);
    const answers = await store.write(writes);
    for (const name of steps) reached(afterKept(name));
    for (const step of signals) reached(`at the wait ${step}, after it was asked for a signal`);
    return answers;
  };
  const turn: Store["turn"] = async (worker, settlements, room) => {
    const ours = settlements.find(({ lease }) => lease.jobId === jobId);
    const wait = ours?.change.wait;
    if (wait) reached(`after the wait ${wait.step} began, before it was stored`);
    else if (ours) reached("after the handler returned, before that was settled");
    const answer = await store.turn(worker, settlements, room);
    if (wait) reached(`after the wait ${wait.step} was stored`);
    else if (ours) reached("after the settlement was durable");
    if (answer.claimed.some(({ lease }) => lease.jobId === jobId)) reached("after the claim, before the handler ran");
    return answer;
  };
  const commit: Transactions["commit"] = async (settlement, body, encode, control) => {
    if (settlement.lease.jobId !== jobId) return store.transactions!.commit(settlement, body, encode, control);
    reached("before the commit");
    const inside = ((tx: never) => {
      const value = body(tx);
      const pass = <T>(result: T): T => {
        reached("inside the commit, before it was durable");
        return result;
      };
      return value instanceof Promise ? value.then(pass) : pass(value);
    }) as typeof body;
    const answer = await store.transactions!.commit(settlement, inside, encode, control);
    reached("after the commit was durable");
    return answer;
  };
  return withVerbs(store, { write, turn, ...(store.transactions && { transactions: { commit } }) });
}

function beforeKept(name: string): string {
  return name.startsWith(WAIT_PREFIX)
    ? `after the wait ${name} ended, before that was kept`
    : `after step "${name}" returned, before its result was kept`;
}

function afterKept(name: string): string {
  return name.startsWith(WAIT_PREFIX)
    ? `after the end of the wait ${name} was kept`
    : `after the result of step "${name}" was kept`;
}

// What a killed run did more often than the undisturbed run. The undisturbed run is the baseline: a job may do the same
// thing twice on purpose, and keys or texts that are new in every run are as many there as here.

export interface Repeated {
  /** Effects that happened more than once, with nothing to tell their receiver that they were the same. */
  readonly twice: readonly string[];
  /** Effects that happened more than once under one idempotency key: a single effect to a receiver that honours it. */
  readonly twiceUnderOneKey: readonly string[];
}

/** How often one thing was done. */
interface Tally {
  readonly keyless: number;
  /** Under how many keys. */
  readonly keys: number;
  /** How often it was done under a key already used for it. */
  readonly again: number;
}

const NEVER: Tally = { keyless: 0, keys: 0, again: 0 };

export function repeated(undisturbed: readonly Effect[], killed: readonly Effect[]): Repeated {
  const before = tallies(undisturbed);
  const now = tallies(killed);
  const beyond = (part: keyof Tally): string[] => {
    // A text unknown to the undisturbed run may replace one of that run's texts that is missing here: it may contain
    // something that is new in every run. There can be only as many of those as are missing.
    let renamed = [...before].reduce(
      (sum, [what, was]) => sum + Math.max(0, was[part] - (now.get(what) ?? NEVER)[part]),
      0,
    );
    return [...now].flatMap(([what, is]) => {
      let more = is[part] - (before.get(what) ?? NEVER)[part];
      if (!before.has(what)) {
        const excused = Math.min(renamed, more);
        renamed -= excused;
        more -= excused;
      }
      return more > 0 ? [what] : [];
    });
  };
  return {
    twice: [...new Set([...beyond("keyless"), ...beyond("keys")])],
    twiceUnderOneKey: beyond("again"),
  };
}

function tallies(effects: readonly Effect[]): Map<string, Tally> {
  const byWhat = Map.groupBy(effects, ({ what }) => what);
  return new Map(
    [...byWhat].map(([what, times]) => {
      const keyed = times.flatMap(({ key }) => (key === null ? [] : [key]));
      const keys = new Set(keyed).size;
      return [what, { keyless: times.length - keyed.length, keys, again: keyed.length - keys }];
    }),
  );
}
