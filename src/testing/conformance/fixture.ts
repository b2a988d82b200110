// The fixture of one conformance test: a fresh database, its clock, workers by name, and the few operations that every
// test is made of. It uses only the store port, so it works with any store.
import assert from "node:assert/strict";
import * as transitions from "../../job/transitions.ts";
import { test, type TestContext } from "node:test";
import type { StoredError } from "../../job/errors.ts";
import type { HeldSuspects } from "../../job/isolation.ts";
import type {
  Backoff,
  ClaimedJob,
  Enqueued,
  JobDetails,
  JobDraft,
  JobState,
  KindSettings,
  Limits,
} from "../../job/job.ts";
import type { ConfirmedTime } from "../../recovery/confirmed-time.ts";
import { decideCrash, expireBatch, recoverBatch, type RecoveredBatch } from "../../recovery/recover.ts";
import type { WorkerRecord, WorkerRow } from "../../stores/liveness.ts";
import type {
  AttemptWrite,
  CondemnRequest,
  KindCounts,
  OverdueJob,
  RecoveredJob,
  Room,
  TurnAnswer,
  Settlement,
  Store,
  WriteAnswer,
} from "../../stores/port.ts";
import type { ConformanceStores, Damage, MakeStores, Restore, SteeredClock, UserWrites } from "./suite.ts";

/** Registers one test of the suite. */
export type Specify = (title: string, body: (fixture: Fixture) => Promise<void>) => void;

/** One test per call, each on its own database. */
export function specifier(makeStores: MakeStores): Specify {
  return (title, body) => {
    test(title, async (t) => body(await Fixture.set(t, makeStores)));
  };
}

/** One batch of a recovery. */
export interface BatchRequest extends CondemnRequest {
  readonly limit: number;
  readonly decide: typeof decideCrash;
}

/** What one batch of a recovery may override. */
export type Recovery = Partial<Omit<BatchRequest, "worker">> & { readonly by?: Store };

/** One batch: condemn, read, decide and take back. */
export function recoverOnce(store: Store, request: BatchRequest): Promise<RecoveredBatch> {
  return recoverBatch(store, request, request.limit, request.decide);
}

/** Reads, decides and takes back what is overdue, without jitter. */
export function expireOnce(
  store: Store,
  marginMs: number,
  limit: number,
  confirmed?: ConfirmedTime,
): Promise<readonly OverdueJob[]> {
  return expireBatch(
    store,
    { overdue: { marginMs, ...(confirmed && { confirmed }) }, limit },
    { next: () => 0.5, hex: () => assert.fail("not asked") },
  );
}

export class Fixture {
  readonly t: TestContext;
  /** The connection that tests use when one is enough. */
  readonly store: Store;
  readonly clock: SteeredClock;
  readonly #stores: ConformanceStores;
  readonly #opened: Set<Store>;
  #passes = 0;

  private constructor(t: TestContext, stores: ConformanceStores, store: Store, opened: Set<Store>) {
    this.t = t;
    this.store = store;
    this.clock = stores.clock;
    this.#stores = stores;
    this.#opened = opened;
  }

  /** A database with the kinds `mail` and `sms` and nothing else. */
  static async set(t: TestContext, makeStores: MakeStores): Promise<Fixture> {
    const stores = await makeStores(t);
    const opened = new Set<Store>();
    t.after(async () => {
      for (const store of opened) await store.close();
      await stores.cleanup();
    });
    const store = await stores.open();
    opened.add(store);
    await store.declare([kind("mail"), kind("sms")]);
    return new Fixture(t, stores, store, opened);
  }

  /** Another connection, as another process would have one. */
  async connect(): Promise<Store> {
    const store = await this.#stores.open();
    this.#opened.add(store);
    return store;
  }

  /** Whether heartbeats of idle workers poll. */
  get polls(): boolean {
    return this.#stores.polls === true;
  }

  /** The user's side of `commit` and `transact`; null: the store has none, and the test is skipped. */
  user(): UserWrites | null {
    if (this.#stores.user === undefined) this.t.skip("this store has no commit");
    return this.#stores.user ?? null;
  }

  /** The store's way to damage its data; null: it has none, and the test is skipped. */
  damage(): Damage | null {
    if (this.#stores.damage === undefined) this.t.skip("this store can't be damaged by a test");
    return this.#stores.damage ?? null;
  }

  /**
   * What recovers without any program of the user's: the database alone, or, where that can't, a process that knows a kind only by what the store
   * keeps of it, as `outlive recover` is. It takes what `worker` holds once that has been silent for a lease.
   */
  async reclaim(worker: TestWorker): Promise<void> {
    if (this.#stores.reclaim) return this.#stores.reclaim();
    const now = this.clock.now();
    const { heartbeatAt, leaseMs } = await worker.row();
    if (now - heartbeatAt <= leaseMs) return;
    const by = await this.connect();
    const death = { how: "silent", lastSeenAliveAt: heartbeatAt, detectedAt: now, evidence: null } as const;
    await this.recoverAll(worker, { by, death });
  }

  /** What a restore does to the rows; null: a test can't do that, and it is skipped. */
  restore(): Restore | null {
    if (this.#stores.restore === undefined) this.t.skip("this store can't be restored by a test");
    return this.#stores.restore ?? null;
  }

  declare(...kinds: readonly KindSettings[]): Promise<void> {
    return this.store.declare(kinds);
  }

  /** Jobs of the kind `mail` unless a draft says otherwise, in one call. */
  enqueue(...drafts: readonly (string | Draft)[]): Promise<readonly Enqueued[]> {
    return this.store.enqueue(drafts.map(draft));
  }

  /** Registers a worker that may claim. */
  async worker(id: string, more: Partial<WorkerRecord> & { readonly store?: Store } = {}): Promise<TestWorker> {
    const { store = this.store, ...record } = more;
    const { epoch } = await store.register(workerRecord(id, record));
    return new TestWorker(store, id, epoch);
  }

  async job(id: string): Promise<JobDetails> {
    const details = await this.store.inspect.get(id);
    assert.ok(details, `job ${id} is in the store`);
    return details;
  }

  async states(...ids: readonly string[]): Promise<readonly (JobState | "missing")[]> {
    const details = await Promise.all(ids.map((id) => this.store.inspect.get(id)));
    return details.map((job) => job?.state ?? "missing");
  }

  async countsOf(name: string): Promise<KindCounts> {
    const counts = (await this.store.inspect.counts()).find((row) => row.kind === name);
    assert.ok(counts, `kind ${name} is counted`);
    return counts;
  }

  /** The recovery request for this worker, made from its current row. */
  async recovery(worker: TestWorker, overrides: Recovery = {}): Promise<BatchRequest> {
    const row = await worker.row();
    const pass = String(++this.#passes).padStart(6, "0");
    const now = this.clock.now();
    return {
      worker: row,
      death: { how: "gone", lastSeenAliveAt: null, detectedAt: now, evidence: null },
      recovery: { id: `recovery-${pass}`, startedAt: now, by: "test", integrity: "NOT_CHECKED", summary: null },
      incident: `incident-${pass}`,
      limit: 1_000,
      decide: decideCrash,
      ...overrides,
    };
  }

  /** One batch of a recovery. */
  async recover(worker: TestWorker, overrides: Recovery = {}): Promise<RecoveredBatch> {
    const { by = this.store, ...rest } = overrides;
    return recoverOnce(by, await this.recovery(worker, rest));
  }

  /**
   * The worker dies and everything it held is recovered. The incident is null if another process has already finished
   * that.
   */
  async recoverAll(
    worker: TestWorker,
    overrides: Recovery = {},
  ): Promise<{ incident: string | null; jobs: readonly RecoveredJob[] }> {
    const { by = this.store, ...rest } = overrides;
    const request = await this.recovery(worker, rest);
    const jobs: RecoveredJob[] = [];
    for (;;) {
      const answer = await recoverOnce(by, request);
      jobs.push(...answer.jobs);
      if (answer.done) return { incident: answer.incident, jobs };
    }
  }

  /** All incidents about this worker. */
  async incidentsOf(worker: TestWorker): Promise<readonly string[]> {
    const incidents = await this.store.inspect.incidents(1_000, null);
    return incidents.filter((incident) => incident.worker === worker.id).map(({ id }) => id);
  }
}

// Plain values for the conformance tests: kinds, jobs and workers with every field set, so that a test names only what
// it is about.

export const TIMEOUT_MS = 60_000;
export const GRACE_MS = 5_000;
export const LEASE_MS = 30_000;

const BACKOFF: Backoff = { type: "exponential", baseMs: 1_000, maxMs: 60_000, jitter: 0 };
const LIMITS: Limits = { errors: 3, timeouts: 3, crashes: 3 };

export function kind(name: string, more: Partial<Omit<KindSettings, "name">> = {}): KindSettings {
  return {
    name,
    timeoutMs: TIMEOUT_MS,
    maxRuntimeMs: null,
    graceMs: GRACE_MS,
    limits: LIMITS,
    backoff: BACKOFF,
    onCrash: "retry",
    ...more,
  };
}

export type Draft = Partial<JobDraft> & Pick<JobDraft, "id">;

/** A job of the kind `mail`, to be run at once. */
export function draft(job: string | Draft): JobDraft {
  const more = typeof job === "string" ? { id: job } : job;
  return { kind: "mail", input: "{}", priority: 0, runAt: null, delayMs: 0, dedupeKey: null, ...more };
}

/** `count` names, in the order in which they sort. */
export function names(prefix: string, count: number): readonly string[] {
  return Array.from({ length: count }, (_, i) => `${prefix}${String(i + 1).padStart(4, "0")}`);
}

export function workerRecord(id: string, more: Partial<WorkerRecord> = {}): WorkerRecord {
  return {
    id,
    host: "stage",
    bootId: "boot-1",
    namespace: null,
    pid: 4_711,
    startTicks: null,
    predecessor: null,
    version: "1.2.3",
    leaseMs: LEASE_MS,
    concurrency: 10,
    kinds: ["mail", "sms"],
    lock: { name: null, identity: null },
    ...more,
  };
}

// A worker as the conformance tests drive it: it claims, settles and writes only when a test calls it, one call at a
// time.

export const NO_ROOM: Room = { total: 0, kinds: [] };

/** Room for `total` jobs, and as many of each kind, in a worker that holds no suspect unless specified. */
export function roomFor(
  total: number,
  kinds: readonly string[] = ["mail", "sms"],
  suspects: Partial<HeldSuspects> = {},
): Room {
  const held = { count: 0, together: null, oldestFirst: false, ...suspects };
  return { total, kinds: kinds.map((name) => ({ kind: name, room: total })), suspects: held };
}

export class TestWorker {
  readonly id: string;
  readonly store: Store;
  /** The epoch under which it registered. */
  readonly epoch: number;

  constructor(store: Store, id: string, epoch: number) {
    this.store = store;
    this.id = id;
    this.epoch = epoch;
  }

  /** Its row, also after it has ended. */
  async row(): Promise<WorkerRow> {
    const row = (await this.store.workers({ which: "all" })).find(({ id }) => id === this.id);
    assert.ok(row, `worker ${this.id} has a row`);
    return row;
  }

  /** One turn of the worker's loop. */
  turn(settlements: readonly Settlement[], room: Room): Promise<TurnAnswer> {
    return this.store.turn(this.id, settlements, room);
  }

  async claim(room: Room | number): Promise<readonly ClaimedJob[]> {
    return (await this.turn([], typeof room === "number" ? roomFor(room) : room)).claimed;
  }

  /** Claims the next job, and fails the test if there is none. */
  async next(room: Room = roomFor(1)): Promise<ClaimedJob> {
    const [job] = await this.claim(room);
    assert.ok(job, `there is a job for ${this.id}`);
    return job;
  }

  async settle(...settlements: readonly Settlement[]): Promise<readonly WriteAnswer[]> {
    return (await this.turn(settlements, NO_ROOM)).settled;
  }

  async record(job: ClaimedJob, ...writes: readonly AttemptWrite[]): Promise<readonly WriteAnswer[]> {
    return this.store.write(writes.map((write) => ({ lease: job.lease, write })));
  }
}

/** The ids of claimed jobs, in the order of the claim. */
export function idsOf(jobs: readonly ClaimedJob[]): readonly string[] {
  return jobs.map((job) => job.lease.jobId);
}

/** The kinds of results, in order. */
export function answers(written: readonly WriteAnswer[]): readonly WriteAnswer["is"][] {
  return written.map((answer) => answer.is);
}

const BROKEN: StoredError = { name: "Error", message: "the printer is on fire" };

/** Every way in which an attempt can be settled by its worker. */
export const SETTLE = {
  succeed: (job: ClaimedJob, result: string | null = null): Settlement => ({
    lease: job.lease,
    change: transitions.succeed(view(job), result),
  }),
  fail: (job: ClaimedJob, delayMs = 0, settings: KindSettings = kind(job.kind)): Settlement => ({
    lease: job.lease,
    change: transitions.fail(view(job), settings, BROKEN, delayMs, false),
  }),
  failForGood: (job: ClaimedJob): Settlement => ({
    lease: job.lease,
    change: transitions.fail(view(job), kind(job.kind), BROKEN, 0, true),
  }),
  timeOut: (job: ClaimedJob): Settlement => ({
    lease: job.lease,
    change: transitions.timeOut(view(job), kind(job.kind), 0),
  }),
  release: (job: ClaimedJob, delayMs = 0): Settlement => ({
    lease: job.lease,
    change: transitions.release(view(job), "its worker shut down", delayMs),
  }),
  releaseUnstarted: (job: ClaimedJob): Settlement => ({
    lease: job.lease,
    change: transitions.releaseUnstarted(view(job), "its worker never started it"),
  }),
  endCancelled: (job: ClaimedJob): Settlement => ({
    lease: job.lease,
    change: transitions.endCancelled(view(job), "cancelled while it ran"),
  }),
  refuse: (job: ClaimedJob): Settlement => ({ lease: job.lease, change: transitions.refuse(view(job), BROKEN) }),
} as const;

export type SettleName = keyof typeof SETTLE;
export const SETTLE_NAMES = Object.keys(SETTLE) as readonly SettleName[];

function view(job: ClaimedJob): transitions.JobView {
  return { id: job.lease.jobId, state: "running", counters: job.counters };
}
