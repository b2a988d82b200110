// Histories of expiry, removal, promotion and the audit: workers that claim, wait and die, and people who change jobs, on the real SQLite store and a virtual clock.
// The laws know from the answers alone what each job must be, and compare the rows with that after every call.
import { type ClaimedJob, JOB_STATES, OUTCOMES } from "../../../src/job/job.ts";
import * as transitions from "../../../src/job/transitions.ts";
import { decideCrash, recoverBatch } from "../../../src/recovery/recover.ts";
import { changedCount, type HandChange, type Settlement, type Store } from "../../../src/stores/port.ts";
import { Database } from "../../../src/stores/sqlite/database.ts";
import { migrate } from "../../../src/stores/sqlite/schema.ts";
import { sqliteStore } from "../../../src/stores/sqlite/store.ts";
import { draft, kind, roomFor, workerRecord } from "../../../src/testing/conformance/fixture.ts";
import { type VirtualClock, virtualClock } from "../../../src/testing/virtual-clock.ts";
import type { Caught } from "../mutation.ts";
import { demand } from "../oracle/violation.ts";
import { SeededRandom } from "../world/random.ts";
import type { OperationsMutant } from "./mutants.ts";

/** What the laws know of a job. */
interface Known {
  /** When it expires unless an attempt has begun; null: never. */
  expiresAt: number | null;
  begun: boolean;
  removed: boolean;
  parent: string | null;
}

export interface OperationsHistory {
  readonly seed: number;
  readonly expired: number;
  readonly removed: number;
  readonly deaths: number;
  readonly violation: string | null;
}

const STEPS = 250;

export async function simulateOperations(seed: number, mutant?: OperationsMutant): Promise<OperationsHistory> {
  const world = new OperationsWorld(seed, mutant);
  try {
    return await world.run();
  } finally {
    await world.close();
  }
}

class OperationsWorld {
  readonly #seed: number;
  readonly #random: SeededRandom;
  readonly #clock: VirtualClock = virtualClock(Date.UTC(2026, 2, 1));
  readonly #db = new Database({ path: ":memory:" });
  readonly #store: Store;
  readonly #jobs = new Map<string, Known>();
  readonly #workers = new Map<string, ClaimedJob[]>();
  #ids = 0;
  #changed = 0;
  readonly #sums = { expired: 0, removed: 0, deaths: 0 };

  constructor(seed: number, mutant: OperationsMutant | undefined) {
    this.#seed = seed;
    this.#random = new SeededRandom(`operations ${seed}`);
    migrate(this.#db);
    const random = this.#random.fork("store");
    const newId = (): string => `id-${this.#ids++}`;
    const real = sqliteStore({ db: this.#db, clock: this.#clock, random, newId, wakeup: null });
    this.#store = mutant?.store(real, this.#db, this.#clock) ?? real;
  }

  async run(): Promise<OperationsHistory> {
    try {
      await this.#store.declare([kind("mail"), kind("sms")]);
      for (let i = 0; i < 3; i++) await this.#register();
      for (let step = 0; step < STEPS; step++) {
        await this.#step();
        await this.#look();
      }
      await this.#calm();
    } catch (thrown) {
      return { seed: this.#seed, ...this.#sums, violation: (thrown as Error).message };
    }
    return { seed: this.#seed, ...this.#sums, violation: null };
  }

  async close(): Promise<void> {
    await this.#store.close();
  }

  async #register(): Promise<void> {
    const id = `worker-${this.#ids++}`;
    await this.#store.register(workerRecord(id));
    this.#workers.set(id, []);
  }

  async #step(): Promise<void> {
    const act = this.#random.weighted({ enqueue: 5, turn: 6, change: 4, pass: 4, die: 0.5 });
    if (act === "enqueue") await this.#enqueue();
    else if (act === "turn") await this.#turn(this.#random.pick([...this.#workers.keys()]), 3);
    else if (act === "change") await this.#change();
    else if (act === "pass") await this.#clock.advance(this.#random.below(1_500));
    else await this.#die(this.#random.pick([...this.#workers.keys()]));
  }

  #draw(parent: string | null): ReturnType<typeof draft> {
    const random = this.#random;
    const id = `job-${this.#ids++}`;
    const delayMs = random.chance(0.3) ? random.below(4_000) : 0;
    const expiresMs = random.chance(0.6) ? 1 + random.below(3_000) : undefined;
    const at = this.#clock.now() + delayMs;
    this.#jobs.set(id, {
      expiresAt: expiresMs === undefined ? null : at + expiresMs,
      begun: false,
      removed: false,
      parent,
    });
    return draft({
      id,
      kind: parent === null ? "mail" : "sms",
      delayMs,
      input: '"full"',
      ...(expiresMs !== undefined && { expiresMs }),
    });
  }

  async #enqueue(): Promise<void> {
    await this.#store.enqueue([this.#draw(null)]);
  }

  /** Settles what it holds, each in some way, and claims. */
  async #turn(worker: string, total: number): Promise<boolean> {
    const held = this.#workers.get(worker)!;
    const ended = held.filter(() => this.#random.chance(0.7));
    const settlements: Settlement[] = [];
    for (const job of ended) settlements.push(await this.#settlement(job));
    const now = this.#clock.now();
    const turn = await this.#store.turn(worker, settlements, roomFor(total));
    this.#workers.set(worker, [...held.filter((job) => !ended.includes(job)), ...turn.claimed]);
    for (const { lease, input } of turn.claimed) {
      const known = this.#jobs.get(lease.jobId)!;
      demand(!known.removed, () => `removed: job ${lease.jobId} was claimed after its removal`);
      demand(input === '"full"', () => `removed: job ${lease.jobId} was claimed without its input`);
      const isLate = lease.fence === 1 && known.expiresAt !== null && known.expiresAt <= now;
      demand(!isLate, () => `late: job ${lease.jobId} began ${now - (known.expiresAt ?? 0)} ms after it had expired`);
      known.begun = true;
    }
    if (turn.nextDueInMs !== 0) await this.#nothingOverdue(now);
    return turn.nextDueInMs === 0 || turn.claimed.length > 0 || settlements.length > 0;
  }

  async #settlement(job: ClaimedJob): Promise<Settlement> {
    const { lease, counters } = job;
    const view = { id: lease.jobId, state: "running", counters } as const;
    const how = this.#random.weighted({ succeed: 4, fail: 1, wait: job.kind === "mail" && lease.fence === 1 ? 3 : 0 });
    if (how === "succeed") return { lease, change: transitions.succeed(view, '"full"') };
    if (how === "fail")
      return { lease, change: transitions.fail(view, kind(job.kind), { name: "E", message: "m" }, 500, false) };
    const drafts = [this.#draw(lease.jobId), this.#draw(lease.jobId)];
    await this.#store.write([
      { lease, write: { type: "step", name: "s", result: '"full"' } },
      { lease, write: { type: "enqueue", drafts } },
    ]);
    const until = { jobs: drafts.map(({ id }) => id) };
    return { lease, change: transitions.wait(view, { step: "run.wait#1", forMs: null, until }) };
  }

  async #change(): Promise<void> {
    const known = [...this.#jobs.keys()];
    if (known.length === 0) return;
    const ids = [...new Set(Array.from({ length: 1 + this.#random.below(4) }, () => this.#random.pick(known)))];
    const what = this.#random.weighted({ cancel: 1, retry: 2, promote: 2, remove: 3 });
    const change: HandChange = { do: what };
    const entry = { id: `entry-${this.#ids++}`, actor: "ann", action: what, target: "jobs", reason: null } as const;
    const running = new Set([...this.#workers.values()].flat().map(({ lease }) => lease.jobId));
    const isRunning = (id: string): boolean =>
      running.has(id) && this.#db.sql("SELECT 1 FROM outlive_jobs WHERE id = ? AND state = 1").get(id) !== undefined;
    const were = ids.map(isRunning);
    const answers = await this.#store.operate.change(ids, change, entry);
    this.#changed += changedCount(answers);
    for (const [at, { is }] of answers.entries()) {
      const job = this.#jobs.get(ids[at]!)!;
      if (what === "remove" && is === "removed") {
        demand(!were[at], () => `running: job ${ids[at]} was removed while it ran`);
        job.removed = true;
        this.#sums.removed++;
      }
      if (what === "retry" && is === "applied") job.expiresAt = null;
      if (job.removed && what !== "remove")
        demand(is === "missing" || is === "wrong-state", () => `removed: job ${ids[at]} was changed by ${what}: ${is}`);
    }
  }

  async #die(worker: string): Promise<void> {
    this.#sums.deaths++;
    const row = (await this.#store.workers({})).find(({ id }) => id === worker)!;
    const now = this.#clock.now();
    const pass = `pass-${this.#ids++}`;
    const death = { how: "gone", lastSeenAliveAt: null, detectedAt: now, evidence: null } as const;
    const recovery = { id: pass, startedAt: now, by: "sim", integrity: "NOT_CHECKED", summary: null };
    const request = { worker: row, death, recovery, incident: `incident-${pass}` };
    while (!(await recoverBatch(this.#store, request, 100, decideCrash)).done);
    this.#workers.delete(worker);
    await this.#register();
  }

  /** The laws that hold at every moment. */
  async #look(): Promise<void> {
    const rows = this.#db
      .sql("SELECT id, state, outcome, fence, input, result FROM outlive_jobs WHERE kind > 0")
      .all() as {
      id: string;
      state: number;
      outcome: number | null;
      fence: number;
      input: string;
      result: string | null;
    }[];
    let expired = 0;
    for (const { id, state, outcome, fence, input, result } of rows) {
      const known = this.#jobs.get(id)!;
      // A retry by hand leaves the outcome of what was before it.
      if (state === CANCELLED && outcome === EXPIRED) {
        expired++;
        const isEarly = fence > 0 || known.expiresAt === null || known.expiresAt > this.#clock.now();
        demand(!isEarly, () => `early: job ${id} expired, and must not have`);
      }
      if (known.removed)
        demand(
          input === "null" && result === null,
          () => `contents: job ${id} was removed, and ${input} is still there`,
        );
    }
    this.#sums.expired = Math.max(this.#sums.expired, expired);
    for (const table of ["steps", "history", "logs", "signals", "extras"]) {
      const orphan = this.#db
        .sql(
          `SELECT job FROM outlive_${table} t WHERE NOT EXISTS (SELECT 1 FROM outlive_jobs j WHERE j.seq = t.job AND j.kind > 0) LIMIT 1`,
        )
        .get();
      demand(orphan === undefined, () => `contents: a row in ${table} belongs to no job`);
    }
    const { n } = this.#db.sql("SELECT ifnull(sum(count), 0) AS n FROM outlive_audit").get() as { n: number };
    demand(n === this.#changed, () => `audit: it has ${n} changes, and there were ${this.#changed}`);
  }

  async #nothingOverdue(now: number): Promise<void> {
    for (const [id, { expiresAt, begun, removed }] of this.#jobs) {
      if (expiresAt === null || expiresAt > now || begun || removed) continue;
      const row = this.#db.sql("SELECT state FROM outlive_jobs WHERE id = ? AND fence = 0").get(id) as
        | { state: number }
        | undefined;
      demand(row?.state !== 0, () => `overdue: job ${id} has expired, and a turn left it queued`);
    }
  }

  /** Everything comes to its end: no parent waits for what has ended or was removed. */
  async #calm(): Promise<void> {
    for (let rounds = 0; rounds < 200; rounds++) {
      let busy = false;
      for (const worker of this.#workers.keys()) busy = (await this.#turn(worker, 9)) || busy;
      await this.#look();
      await this.#clock.advance(1_000);
      if (!busy && rounds > 20) break;
    }
    const stuck = this.#db.sql("SELECT id FROM outlive_jobs WHERE state < 2 AND kind > 0 LIMIT 1").get() as
      | { id: string }
      | undefined;
    demand(stuck === undefined, () => `stuck: job ${stuck?.id} has not ended, and nothing is left that could end it`);
  }
}

const CANCELLED = JOB_STATES.indexOf("cancelled");
const EXPIRED = OUTCOMES.indexOf("expired");

/** Every bug on purpose, seed after seed until a law finds it. */
export async function huntOperations(budget: number, mutants: readonly OperationsMutant[]): Promise<readonly Caught[]> {
  const caught: Caught[] = [];
  for (const mutant of mutants) {
    let found: Caught = { mutant: mutant.name, seed: null, seeds: budget, violation: null };
    for (let seed = 1; seed <= budget && found.seed === null; seed++) {
      const { violation } = await simulateOperations(seed, mutant);
      if (violation !== null) found = { mutant: mutant.name, seed, seeds: seed, violation };
    }
    caught.push(found);
  }
  return caught;
}
