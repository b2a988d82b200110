// The stage of one conformance test: a fresh database, its clock, workers by name, and the few moves that every test is made of.
// It speaks only through the store port, so what it can do, any store can.
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import type { Draft } from "./drafts.ts";
import { draft, kind, workerRecord } from "./drafts.ts";
import { Hand } from "./hand.ts";
import type { ConformanceStores, Damage, MakeStores, Restore, SteeredClock, UserWrites } from "./stores.ts";
import type { Enqueued, JobDetails, JobState, KindSettings } from "../../core/job.ts";
import type { WorkerRecord } from "../../core/liveness.ts";
import { decideCrash, expireBatch, recoverBatch, type RecoveredBatch } from "../../core/recovery.ts";
import type { ConfirmedTime } from "../../core/confirmed-time.ts";
import type { CondemnRequest, KindCounts, OverdueJob, RecoveredJob, Store } from "../../core/store.ts";

/** Registers one test of the suite. */
export type Specify = (title: string, body: (scene: Scene) => Promise<void>) => void;

/** One test per call, each on a database of its own. */
export function specifier(makeStores: MakeStores): Specify {
  return (title, body) => {
    test(title, async (t) => body(await Scene.set(t, makeStores)));
  };
}

/** One batch of a recovery. */
export interface BatchRequest extends CondemnRequest {
  readonly limit: number;
  readonly decide: typeof decideCrash;
}

/** What one batch of a recovery may say differently from the usual. */
export type Recovery = Partial<Omit<BatchRequest, "worker">> & { readonly by?: Store };

/** One batch: condemned, read, decided and taken back. */
export function recoverOnce(store: Store, request: BatchRequest): Promise<RecoveredBatch> {
  return recoverBatch(store, request, request.limit, request.decide);
}

/** What is overdue is read, decided and taken back, without jitter. */
export function expireOnce(
  store: Store,
  marginMs: number,
  limit: number,
  confirmed?: ConfirmedTime,
): Promise<readonly OverdueJob[]> {
  return expireBatch(
    store,
    { marginMs, limit, ...(confirmed && { confirmed }) },
    { next: () => 0.5, hex: () => assert.fail("not asked") },
  );
}

export class Scene {
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
  static async set(t: TestContext, makeStores: MakeStores): Promise<Scene> {
    const stores = await makeStores(t);
    const opened = new Set<Store>();
    t.after(async () => {
      for (const store of opened) await store.close();
      await stores.cleanup();
    });
    const store = await stores.open();
    opened.add(store);
    await store.declare([kind("mail"), kind("sms")]);
    return new Scene(t, stores, store, opened);
  }

  /** A further connection, as another process would have one. */
  async connect(): Promise<Store> {
    const store = await this.#stores.open();
    this.#opened.add(store);
    return store;
  }

  /** The user's side of `commit` and `transact`; null where the store has none, and then the test is skipped. */
  user(): UserWrites | null {
    if (this.#stores.user === undefined) this.t.skip("this store has no commit");
    return this.#stores.user ?? null;
  }

  /** The store's way to damage what it keeps; null where it has none, and then the test is skipped. */
  damage(): Damage | null {
    if (this.#stores.damage === undefined) this.t.skip("this store can't be damaged by a test");
    return this.#stores.damage ?? null;
  }

  /** What a restore does to the rows; null where a test can't do that, and then the test is skipped. */
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
  async worker(id: string, more: Partial<WorkerRecord> & { readonly store?: Store } = {}): Promise<Hand> {
    const { store = this.store, ...record } = more;
    const { epoch } = await store.register(workerRecord(id, record));
    return new Hand(store, id, epoch);
  }

  async job(id: string): Promise<JobDetails> {
    const details = await this.store.get(id);
    assert.ok(details, `job ${id} is in the store`);
    return details;
  }

  async states(...ids: readonly string[]): Promise<readonly (JobState | "missing")[]> {
    const details = await Promise.all(ids.map((id) => this.store.get(id)));
    return details.map((job) => job?.state ?? "missing");
  }

  async countsOf(name: string): Promise<KindCounts> {
    const counts = (await this.store.counts()).find((row) => row.kind === name);
    assert.ok(counts, `kind ${name} is counted`);
    return counts;
  }

  /** What a recovery asks about this worker, made from its row as it is now. */
  async recovery(worker: Hand, said: Recovery = {}): Promise<BatchRequest> {
    const row = await worker.row();
    const pass = String(++this.#passes).padStart(6, "0");
    const now = this.clock.now();
    return {
      worker: row,
      death: { how: "gone", lastSeenAliveAt: null, detectedAt: now, evidence: null },
      recovery: { id: `recovery-${pass}`, startedAt: now, by: "test", integrity: "NOT_CHECKED", walFrames: 0 },
      incident: `incident-${pass}`,
      limit: 1_000,
      decide: decideCrash,
      ...said,
    };
  }

  /** One batch of a recovery. */
  async recover(worker: Hand, said: Recovery = {}): Promise<RecoveredBatch> {
    const { by = this.store, ...rest } = said;
    return recoverOnce(by, await this.recovery(worker, rest));
  }

  /** The worker dies and all it held is recovered. The incident is null if somebody else has finished that already. */
  async bury(worker: Hand, said: Recovery = {}): Promise<{ incident: string | null; jobs: readonly RecoveredJob[] }> {
    const { by = this.store, ...rest } = said;
    const request = await this.recovery(worker, rest);
    const jobs: RecoveredJob[] = [];
    for (;;) {
      const answer = await recoverOnce(by, request);
      jobs.push(...answer.jobs);
      if (answer.done) return { incident: answer.incident, jobs };
    }
  }

  /** All incidents about this worker. */
  async incidentsOf(worker: Hand): Promise<readonly string[]> {
    const incidents = await this.store.incidents(1_000, null);
    return incidents.filter((incident) => incident.worker === worker.id).map(({ id }) => id);
  }
}
