// What a job does outside the store, recorded as its process does it: HTTP requests are detected automatically,
// everything else is reported with `effect`. Each effect is a line in an append-only file, written before the process
// can die of what comes next.
import { subscribe } from "node:diagnostics_channel";
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { shownWait, WAIT_PREFIX } from "../../job/waits.ts";
import type { Broker } from "../../stores/broker.ts";
import type { Lease } from "../../job/lease.ts";
import { withVerbs } from "../../stores/observed.ts";
import type { AttemptWrite, Store, TransactionBody, Transactions } from "../../stores/port.ts";

const VARIABLE = "OUTLIVE_CRASH_TEST_EFFECTS";

export interface Effect {
  readonly what: string;
  /** The idempotency key that it carried: the same key twice is one effect to a receiver that honours it. */
  readonly key: string | null;
}

/** For a job under `crashTest`: reports that an effect outside the store happens now. Does nothing elsewhere. */
export function effect(
  what: string,
  options: {
    /** The idempotency key that its receiver gets. Default: none. */
    readonly key?: string;
  } = {},
): void {
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

interface UndiciRequest {
  readonly method: string;
  readonly origin: string;
  readonly path: string;
  readonly headers: readonly string[] | string;
}

/**
 * Records every request sent with `fetch`, undici or `node:http`, as its first byte goes. Reads too: only the user knows whether they matter. Of a request kind under
 * test HTTP knows it: those of an idempotent method may come twice.
 */
export function watchRequests(isUnderTest: (request: UndiciRequest) => boolean = () => false): void {
  subscribe("undici:client:sendHeaders", (message) => {
    const { request } = message as { request: UndiciRequest };
    const { method, origin, path } = request;
    const isHarmless = isUnderTest(request) && method !== "POST" && method !== "PATCH";
    write({ what: `${method} ${origin}${path}`, key: isHarmless ? method : headerOf(request, "idempotency-key") });
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
function headerOf({ headers }: UndiciRequest, name: string): string | null {
  const lines = typeof headers === "string" ? headers.split("\r\n") : headers;
  for (const [at, header] of lines.entries()) {
    const lower = header.toLowerCase();
    if (lower === name) return lines[at + 1] ?? null;
    if (lower.startsWith(`${name}:`)) return header.slice(name.length + 1).trim();
  }
  return null;
}

/** Whether this is the request job itself that is sent, and not a call of a handler. */
export function isSentFor(jobId: string): (request: UndiciRequest) => boolean {
  return (request) => headerOf(request, "x-request-id")?.startsWith(`${jobId}-`) === true;
}

/** Calls `reached` around each sending of the request under test. Redirects are sendings of their own. */
export function tellSending(isUnderTest: (request: UndiciRequest) => boolean, reached: Reached): void {
  const points = {
    "undici:request:create": "before it was sent",
    "undici:request:bodySent": "after it was sent, before its answer came",
    "undici:request:headers": "after its answer began",
  };
  for (const [channel, point] of Object.entries(points))
    subscribe(channel, (message) => {
      if (isUnderTest((message as { request: UndiciRequest }).request)) reached(point);
    });
}

function write(happened: Effect): void {
  const file = process.env[VARIABLE];
  if (file !== undefined) appendFileSync(file, `${JSON.stringify(happened)}\n`);
}

// Where a job's process can die so that something happens twice: around every durable step, every wait, and the settlement.
// The points come from wrapping the store port; the engine has no hook for this.

/** A point in the job's life, in words. */
export type Reached = (point: string) => void;

/** How the points of a job are named; null: it is not one of those under test. */
export type NameOf = (jobId: string) => string | null;

/** The same store, except that it calls `reached` at every point before the process continues. */
export function tellingStore(store: Store, nameOf: NameOf, reached: Reached): Store {
  const isOurs = ({ lease }: { readonly lease: Lease }): boolean => nameOf(lease.jobId) !== null;
  const write: Store["write"] = async (writes) => {
    const ours = writes.filter(isOurs);
    const before = ours.map(({ lease, write: one }) => [pointsOf(one), nameOf(lease.jobId)!] as const);
    for (const [points, name] of before) if (points) reached(`${points.before}${name}`);
    const answers = await store.write(writes);
    for (const [points, name] of before) if (points) reached(`${points.after}${name}`);
    return answers;
  };
  const turn: Store["turn"] = async (worker, settlements, room) => {
    const ours = settlements
      .filter(isOurs)
      .map(({ lease, change: { wait } }) => ({ name: nameOf(lease.jobId)!, wait }));
    for (const { name, wait } of ours)
      reached(
        wait
          ? `after the wait ${shownWait(wait.step)} began, before it was stored${name}`
          : `after the handler returned, before that was settled${name}`,
      );
    const answer = await store.turn(worker, settlements, room);
    for (const { name, wait } of ours)
      reached(
        wait ? `after the wait ${shownWait(wait.step)} was stored${name}` : `after the settlement was durable${name}`,
      );
    for (const claimed of answer.claimed.filter(isOurs))
      reached(`after the claim, before the handler ran${nameOf(claimed.lease.jobId)!}`);
    return answer;
  };
  const told = <T>(body: TransactionBody<unknown, T>, name: string): TransactionBody<unknown, T> => {
    reached(`before the commit${name}`);
    return (tx) => {
      const value = body(tx);
      const pass = (result: T): T => {
        reached(`inside the commit, before it was durable${name}`);
        return result;
      };
      return value instanceof Promise ? value.then(pass) : pass(value);
    };
  };
  const commit: Transactions["commit"] = async (settlement, body, encode, control) => {
    const name = nameOf(settlement.lease.jobId);
    if (name === null) return store.transactions!.commit(settlement, body, encode, control);
    const answer = await store.transactions!.commit(settlement, told(body, name), encode, control);
    reached(`after the commit was durable${name}`);
    return answer;
  };
  const writeWithin: Transactions["write"] = async (fenced, body, control) => {
    const name = nameOf(fenced.lease.jobId);
    if (name === null) return store.transactions!.write(fenced, body, control);
    const of = rowsOf(fenced.write) + name;
    const answer = await store.transactions!.write(fenced, told(body, of), control);
    reached(`after the commit was durable${of}`);
    return answer;
  };
  return withVerbs(store, {
    write,
    turn,
    ...(store.transactions && { transactions: { commit, write: writeWithin } }),
  });
}

/** The same store, except that it calls `reached` around everything that opens, fills and ends a collection. */
export function tellingCollections(store: Store, reached: Reached): Store {
  const collections = store.collections!;
  const around = async <T>(what: string, work: () => Promise<T>): Promise<T> => {
    reached(`before ${what}`);
    const answer = await work();
    reached(`after ${what}`);
    return answer;
  };
  return withVerbs(store, {
    collections: {
      open: (draft) => around("the collection was opened", () => collections.open(draft)),
      put: (parts) =>
        around(`part ${parts.map(({ series, ordinal }) => `${series} ${ordinal}`).join(", ")} was kept`, () =>
          collections.put(parts),
        ),
      step: (step) => around(`the collection became ${step.to}`, () => collections.step(step)),
    },
  });
}

/** In place of a broker: what is published is an effect, and its message id the key by which its receiver knows a repetition. */
export function recordingBroker(): Broker {
  return {
    place: "the crash test",
    consumes: [],
    async publish({ target, messageId }) {
      effect(`publish to ${typeof target === "string" ? target : `${target.exchange} ${target.routingKey}`}`, {
        key: messageId,
      });
    },
    wire: ({ kind }) => ({
      exchange: "",
      header: `${kind}.header`,
      part: `${kind}.part`,
      queues: { header: `${kind}.header`, part: `${kind}.part` },
    }),
    prepare: async () => {},
    discard: async () => {},
    startConsuming: () => ({ set: () => {}, stop: async () => {} }),
    close: async () => {},
  };
}

/** The same store, except that it calls `reached` around everything that submits a batch. */
export function tellingSubmission(store: Store, reached: Reached): Store {
  const batches = store.batches!;
  const around = async <T>(what: string, work: () => Promise<T>): Promise<T> => {
    reached(`before the batch was ${what}`);
    const answer = await work();
    reached(`after the batch was ${what}`);
    return answer;
  };
  return withVerbs(store, {
    batches: {
      open: (...draft) => around("opened", () => batches.open(...draft)),
      append: (...blocks) => around("filled", () => batches.append(...blocks)),
      seal: (...batch) => around("sealed", () => batches.seal(...batch)),
    },
  });
}

/** The points around a small write of an attempt; null: nothing happens twice if it is repeated. */
function pointsOf(write: AttemptWrite): { readonly before: string; readonly after: string } | null {
  if (write.type === "step") return { before: beforeKept(write.name), after: afterKept(write.name) };
  if (write.type === "signal")
    return {
      before: `at the wait ${write.step}, before a signal was read`,
      after: `at the wait ${write.step}, after it was asked for a signal`,
    };
  if (write.type !== "rows") return null;
  const rows = rowsOf(write);
  return { before: `before the end of rows was marked${rows}`, after: `after the end of rows was marked${rows}` };
}

/** Which rows of its block a write ends, from 1. */
function rowsOf(write: AttemptWrite): string {
  if (write.type !== "rows") return "";
  const rows = [...write.ends.succeeded, ...write.ends.failed.map(({ row }) => row)].toSorted((a, b) => a - b);
  return `, rows ${rows.map((row) => row + 1).join(", ")}`;
}

/** A mark of a request (job/requests.ts), in words. */
function markOf(name: string): string | null {
  return name.startsWith("sent(") ? "it is sent" : name.startsWith("known#") ? "its outcome is known" : null;
}

function beforeKept(name: string): string {
  const mark = markOf(name);
  if (mark !== null) return `before it was marked that ${mark}`;
  return name.startsWith(WAIT_PREFIX)
    ? `after the wait ${shownWait(name)} ended, before that was kept`
    : `after step "${name}" returned, before its result was kept`;
}

function afterKept(name: string): string {
  const mark = markOf(name);
  if (mark !== null) return `after it was marked that ${mark}`;
  return name.startsWith(WAIT_PREFIX)
    ? `after the end of the wait ${shownWait(name)} was kept`
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
