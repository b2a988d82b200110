// What a job does outside the store, as its process does it: HTTP requests are seen by themselves, everything else is told with
// `effect`. Each is a line in an append-only file, there before the process can die of what comes next.
import { subscribe } from "node:diagnostics_channel";
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { withVerbs } from "../../stores/observed.ts";
import type { Store, Transactions } from "../../stores/port.ts";

const VARIABLE = "OUTLIVE_CRASH_TEST_EFFECTS";

export interface Effect {
  readonly what: string;
  /** The idempotency key that it carried: the same one twice is one effect to a receiver that honours it. */
  readonly key: string | null;
}

/** For a job under `crashTest`: says that an effect outside the store happens now. Does nothing elsewhere. */
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

/** Writes down every request that goes out by `fetch` or by `node:http`. Reading ones too: whether they matter, the user knows. */
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

/** Headers come as names and values by turns, or as lines. */
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

// Where a job's process can die so that something happens twice: around every durable step, and around the settlement. The points come in by
// wrapping the store port; the engine has no hook for this.

/** A point in the job's life, in words. */
export type Reached = (point: string) => void;

/** The store as it was, except that `reached` hears of every point before the process goes on. */
export function tellingStore(store: Store, jobId: string, reached: Reached): Store {
  const write: Store["write"] = async (writes) => {
    const names = writes.flatMap(({ lease, write }) =>
      lease.jobId === jobId && write.type === "step" ? [write.name] : [],
    );
    for (const name of names) reached(`after step "${name}" returned, before its result was kept`);
    const answers = await store.write(writes);
    for (const name of names) reached(`after the result of step "${name}" was kept`);
    return answers;
  };
  const turn: Store["turn"] = async (worker, settlements, room) => {
    const ours = settlements.some(({ lease }) => lease.jobId === jobId);
    if (ours) reached("after the handler returned, before that was settled");
    const answer = await store.turn(worker, settlements, room);
    if (ours) reached("after the settlement was durable");
    if (answer.claimed.some(({ lease }) => lease.jobId === jobId)) reached("after the claim, before the handler ran");
    return answer;
  };
  const commit: Transactions["commit"] = async (settlement, body, encode, control) => {
    if (settlement.lease.jobId !== jobId) return store.transactions!.commit(settlement, body, encode, control);
    reached("before the commit");
    const inside = ((tx: never) => {
      const value = body(tx);
      const told = <T>(result: T): T => {
        reached("inside the commit, before it was durable");
        return result;
      };
      return value instanceof Promise ? value.then(told) : told(value);
    }) as typeof body;
    const answer = await store.transactions!.commit(settlement, inside, encode, control);
    reached("after the commit was durable");
    return answer;
  };
  return withVerbs(store, { write, turn, ...(store.transactions && { transactions: { commit } }) });
}

// What a run that was killed did more often than the run that nobody killed. That one is the measure: a job may do the same thing twice
// on purpose, and keys or texts that are new in every run are as many there as here.

export interface Repeated {
  /** Effects that happened more than once, though nothing told their receiver that they were the same. */
  readonly twice: readonly string[];
  /** Effects that happened more than once under one idempotency key: one, to a receiver that honours it. */
  readonly twiceUnderOneKey: readonly string[];
}

/** How often one thing was done. */
interface Tally {
  readonly keyless: number;
  /** Under how many keys. */
  readonly keys: number;
  /** How often under a key that it had been done under before. */
  readonly again: number;
}

const NEVER: Tally = { keyless: 0, keys: 0, again: 0 };

export function repeated(undisturbed: readonly Effect[], killed: readonly Effect[]): Repeated {
  const before = tallies(undisturbed);
  const now = tallies(killed);
  const beyond = (part: keyof Tally): string[] => {
    // A text that the undisturbed run does not know stands for one of that run's that is not here: it may name something that is new
    // in every run. There are only so many of those.
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
